"""Rotary embeddings that choose a table in every forward: threads do not get each other's, and no forward writes."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import everlong
from everlong.models import rotations
from everlong.models.attach import attach
from everlong.models.early_exit import early_exit_states
from everlong.models.rotations import isolate_rotations, own_rotations
from support import SMALL, byte_tokenizer, plain_logits, random_text, tiny_model

CHOOSING = [("phi3", "longrope"), ("llama", "dynamic")]
SHORT, LONG = torch.arange(20)[None], torch.arange(600, 620)[None]
SHORT_FRAME = SMALL.changed(frame={"tokens": 480, "recalled_tokens": 64})  # of up to 512 tokens: by the short factors


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
    for config in (SHORT_FRAME, SMALL):
        with everlong.MemoryModel(model, byte_tokenizer(), config=config) as mm:
            mm.read(random_text(450))
            mm.answer_many([random_text(9), random_text(12, seed=1)], max_new_tokens=3)
            early_exit_states(model, torch.arange(30), [1])
    assert state(model.model.rotary_emb) == before


@contextlib.contextmanager
def disturbed(work: Callable[[], Any], frequencies: int) -> Iterator[list[Any]]:
    """Let another thread do the work whenever this one has written so many frequencies, before it uses them."""
    made: list[Any] = []
    own = threading.current_thread()

    def copy_(self: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        written = write(self, *given, **named)
        if threading.current_thread() is own and self.shape == (frequencies,):
            made.append(elsewhere(work))
        return written

    write = torch.Tensor.copy_
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.Tensor, "copy_", copy_)
        yield made


@pytest.mark.parametrize(("kind", "rope"), [("phi3", "longrope"), ("gemma3", "nested")])
def test_a_thread_has_its_own_table_while_another_one_has_the_other(kind: str, rope: str) -> None:
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

    isolate_rotations(model)
    expected = [table(positions) for positions in (SHORT, LONG)]
    with disturbed(lambda: table(LONG), 8) as made:
        assert torch.equal(table(SHORT), expected[0])
    assert len(made) == 1
    assert torch.equal(made[0], expected[1])


@pytest.mark.parametrize("config", [SHORT_FRAME, SMALL])
def test_a_memory_reads_by_its_table_whatever_others_ask_of_the_model(config: everlong.MemoryConfig) -> None:
    """Plain forwards of another thread, with the other table, between the choice of a table and its use."""
    positions = SHORT if config is SMALL else LONG

    def read_and_ask(model: Any) -> everlong.Answer:
        with everlong.MemoryModel(model, byte_tokenizer(), config=config) as mm:
            mm.read(random_text(300))
            return mm.generate(random_text(30, seed=2), max_new_tokens=3)

    expected = read_and_ask(tiny_model("phi3", "longrope"))
    model = tiny_model("phi3", "longrope")
    with disturbed(lambda: asked(model.model.rotary_emb, positions), 8) as made:
        assert read_and_ask(model) == expected
    assert len(made) > 5


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
    with everlong.MemoryModel(touched, byte_tokenizer(), config=SMALL) as mm:
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
    isolate_rotations(model)
    with own_rotations():
        before = asked(rotary, SHORT)
        rotary.original_inv_freq = rotary.original_inv_freq * 2
        after = asked(rotary, SHORT)
    assert not torch.equal(before[0], after[0])


def test_the_class_is_changed_once() -> None:
    model = tiny_model("phi3", "longrope")
    isolate_rotations(model)
    forward = type(model.model.rotary_emb).forward
    isolate_rotations(tiny_model("phi3", "longrope"))
    assert type(model.model.rotary_emb).forward is forward
    assert rotations._own.depth == 0
