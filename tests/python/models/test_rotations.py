"""Rotary embeddings that choose a table in every forward: threads do not get each other's, and no forward writes."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import everlong
from everlong.models import rotations
from everlong.models.attach import attach
from everlong.models.rotations import keep_apart, own_rotations
from everlong.models.shallow import shallow_states
from support import SMALL, byte_tokenizer, plain_logits, random_text, tiny_model

CHOOSING = [("phi3", "longrope"), ("llama", "dynamic")]
SHORT, LONG = torch.arange(20)[None], torch.arange(600, 620)[None]
LARGE = SMALL.changed(frame={"tokens": 1024})


def elsewhere(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def state(rotary: torch.nn.Module) -> dict[str, Any]:
    """All that a rotary embedding holds, with how often each tensor was written."""
    held = {**vars(rotary), **rotary._buffers}
    held.pop("_buffers")
    found = {name: (id(one), one._version) for name, one in held.items() if isinstance(one, torch.Tensor)}
    return found | {"config": copy.deepcopy(rotary.config.to_dict())} | {name: str(held[name]) for name in held}


def asked(rotary: Any, positions: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad():
        return [*rotary(torch.zeros(1), positions)]


@pytest.mark.parametrize(("kind", "rope"), CHOOSING)
def test_a_memory_s_forwards_write_nothing_to_the_rotary_embedding(kind: str, rope: str) -> None:
    model = tiny_model(kind, rope)
    before = state(model.model.rotary_emb)
    for config in (SMALL, LARGE):
        with everlong.MemoryModel(model, byte_tokenizer(), config=config) as mm:
            mm.read(random_text(450))
            mm.answer_many([random_text(9), random_text(12, seed=1)], max_new_tokens=3)
            shallow_states(model, torch.arange(30), [1])
    assert state(model.model.rotary_emb) == before


@pytest.mark.parametrize(("kind", "rope"), [("phi3", "longrope"), ("gemma3", "nested")])
def test_a_thread_has_its_own_table_while_another_one_has_the_other(
    kind: str, rope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread asks for its table between the choice of one and its use."""
    changes: dict[str, Any] = {}
    if rope == "nested":  # tables by kind of layer, one of which is chosen in every forward
        plainly = {"rope_type": "default", "rope_theta": 10000.0}
        chosen = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.1] * 8, "long_factor": [3.0] * 8}
        chosen["original_max_position_embeddings"] = 512
        changes["rope_parameters"] = {"full_attention": chosen, "sliding_attention": plainly}
    model = tiny_model(kind, rope, **changes)
    rotary = model.model.rotary_emb
    layer_type = ("full_attention",) if rope == "nested" else ()

    def table(positions: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), own_rotations():
            cos: torch.Tensor = rotary(torch.zeros(1), positions, *layer_type)[0]
        return cos

    keep_apart(model)
    expected = [table(positions) for positions in (SHORT, LONG)]
    choose, disturbed = torch.where, []

    def where(*given: Any) -> torch.Tensor:  # transformers chooses by it, and writes what it chose
        found = choose(*given)
        if threading.current_thread() is threading.main_thread() and not disturbed:
            disturbed.append(elsewhere(lambda: table(LONG)))
        return found

    monkeypatch.setattr(torch, "where", where)
    assert torch.equal(table(SHORT), expected[0])
    assert torch.equal(disturbed[0], expected[1])
    assert not torch.equal(table(SHORT), elsewhere(lambda: table(SHORT + 600)))


@pytest.mark.slow
def test_a_memory_reads_on_by_its_table_whatever_others_ask_meanwhile() -> None:
    """A hook asks for the other table in another thread, in the middle of every forward of two frames."""
    text, question = random_text(900), random_text(30, seed=2)

    def read_and_ask(model: Any, config: everlong.MemoryConfig) -> everlong.Answer:
        with everlong.MemoryModel(model, byte_tokenizer(), config=config) as mm:
            mm.read(text)
            return mm.generate(question, max_new_tokens=4)

    for config, positions in ((SMALL, LONG), (LARGE, SHORT)):
        model = tiny_model("phi3", "longrope")
        expected = read_and_ask(model, config)
        own = threading.current_thread()
        others: list[Any] = []

        def disturb(*_: object, model: Any = model, positions: torch.Tensor = positions) -> None:
            if threading.current_thread() is own:
                others.append(elsewhere(lambda: asked(model.model.rotary_emb, positions)))

        hook = model.model.embed_tokens.register_forward_hook(disturb)
        assert read_and_ask(model, config) == expected
        hook.remove()
        assert len(others) > 10


def test_a_dynamic_table_that_grew_for_a_caller_is_the_caller_s_alone() -> None:
    model = tiny_model("llama", "dynamic")
    rotary, window = model.model.rotary_emb, model.config.max_position_embeddings
    attach(model, 384)
    beyond = torch.arange(window + 100)[None]
    with own_rotations():
        expected = asked(rotary, SHORT)
    grown = asked(rotary, beyond)
    before = state(rotary)
    with own_rotations():
        assert all(map(torch.equal, asked(rotary, SHORT), expected))
    assert state(rotary) == before
    assert all(map(torch.equal, asked(rotary, beyond), grown))


def test_calls_elsewhere_do_what_transformers_does() -> None:
    model, touched = tiny_model("phi3", "longrope"), tiny_model("phi3", "longrope")
    ids = torch.arange(40) % 256
    with everlong.MemoryModel(touched, byte_tokenizer(), config=LARGE) as mm:
        mm.read(random_text(300))
        assert torch.equal(plain_logits(touched, ids), plain_logits(model, ids))
        for positions in (LONG, SHORT):
            assert all(
                map(torch.equal, asked(touched.model.rotary_emb, positions), asked(model.model.rotary_emb, positions))
            )
            assert torch.equal(touched.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)
        for copied in (copy.deepcopy(touched), pickle.loads(pickle.dumps(touched))):
            assert torch.equal(plain_logits(copied, ids), plain_logits(model, ids))


def test_a_thread_s_copy_is_made_anew_with_the_tensors() -> None:
    model = tiny_model("phi3", "longrope")
    rotary = model.model.rotary_emb
    keep_apart(model)
    with own_rotations():
        before = asked(rotary, SHORT)
        rotary.original_inv_freq = rotary.original_inv_freq * 2
        after = asked(rotary, SHORT)
    assert not torch.equal(before[0], after[0])


def test_the_class_is_changed_once() -> None:
    model = tiny_model("phi3", "longrope")
    keep_apart(model)
    forward = type(model.model.rotary_emb).forward
    keep_apart(tiny_model("phi3", "longrope"))
    assert type(model.model.rotary_emb).forward is forward
    assert rotations._own.depth == 0
