"""Attention that a call brings along: the model's config, and forwards of others, stay as they are."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import everlong
from everlong.errors import UnsupportedModelError
from everlong.kv_cache.cuda_graph import GraphStep
from everlong.models import batched_forward, custom_attention
from everlong.models.attention_stats import AttentionStats, AttentionWindow
from everlong.models.custom_attention import override_attention, with_attention
from everlong.models.tokens import Tokens
from support import SMALL, TOLERANCE, byte_tokenizer, plain_logits, random_text, tiny_model

IDS = torch.arange(7, 30)


def elsewhere(work: Callable[[], Any]) -> Any:
    """What the work gives in another thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@contextlib.contextmanager
def in_the_middle(model: Any, work: Callable[[], Any]) -> Iterator[list[Any]]:
    """In the middle of each forward of this thread another thread does the work. Gives what it made."""
    made: list[Any] = []
    own = threading.get_ident()

    def disturb(*_: object) -> None:
        if threading.get_ident() == own:
            made.append(elsewhere(work))

    hook = model.model.layers[0].register_forward_hook(disturb)
    yield made
    hook.remove()


class Cache(DynamicCache):
    """Computes as a stream among others."""

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> batched_forward.Seen:
        return *self.update(k, v, layer), None


def together(model: Any, texts: list[torch.Tensor]) -> list[Any]:
    streams = [
        batched_forward.StreamTokens(Cache(config=model.config), ids, 0, True, number)
        for number, ids in enumerate(texts)
    ]
    return batched_forward.compute(model, streams)


@torch.no_grad()
def plain(model: Any, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=ids[None]).logits[0]
    return logits


class WrittenError(AssertionError):
    pass


@pytest.fixture(name="read_only")
def a_model_whose_config_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> Any:
    model = tiny_model()
    kind = type(model.config)
    write = kind.__setattr__

    def refuse(self: object, name: str, value: object) -> None:
        if self is model.config:
            raise WrittenError(name)
        write(self, name, value)

    monkeypatch.setattr(kind, "__setattr__", refuse)
    return model


def test_forwards_of_several_streams_write_nothing_to_the_config(read_only: Any) -> None:
    texts = [IDS, IDS[:5] + 3]
    for ids, (logits, _) in zip(texts, together(read_only, texts), strict=True):
        torch.testing.assert_close(logits, plain_logits(read_only, ids), atol=TOLERANCE, rtol=0)


def test_watched_forwards_write_nothing_to_the_config(read_only: Any) -> None:
    with AttentionStats(read_only, {"all": AttentionWindow((0, len(IDS)), (0, len(IDS)))}) as watched:
        logits = plain(read_only, IDS)
    assert torch.equal(logits, plain(read_only, IDS))
    assert float(watched.mass("all").sum()) == pytest.approx(len(IDS), abs=1e-3)


def test_a_joint_forward_and_forwards_of_other_threads_do_not_meet() -> None:
    model, texts = tiny_model(), [IDS, IDS[:5] + 3]
    expected = [plain(model, ids) for ids in texts]

    def others() -> tuple[torch.Tensor, list[Any]]:
        return plain(model, IDS), [logits for logits, _ in together(model, texts)]

    with in_the_middle(model, others) as made:
        found = [logits for logits, _ in together(model, texts)]
    assert len(made) == 1
    alone, inner = made[0]
    assert torch.equal(alone, expected[0])
    for streams in (found, inner):
        for logits, right in zip(streams, expected, strict=True):
            torch.testing.assert_close(logits, right, atol=TOLERANCE, rtol=0)


def test_what_a_thread_brings_is_for_its_own_forwards_of_that_model() -> None:
    model, other = tiny_model(), tiny_model(seed=1)
    expected, of_other = plain(model, IDS), plain(other, IDS)
    called: list[int] = []

    def attend(module: Any, query: torch.Tensor, *more: Any, **named: Any) -> Any:
        called.append(threading.get_ident())
        return custom_attention.attend_plainly(module, query * 0, *more, **named)

    with override_attention(model, attend):
        assert torch.equal(elsewhere(lambda: plain(model, IDS)), expected)
        assert torch.equal(plain(other, IDS), of_other)
        assert called == []
        assert not torch.allclose(plain(model, IDS), expected)
    assert set(called) == {threading.get_ident()}
    assert torch.equal(plain(model, IDS), expected)
    with pytest.raises(ZeroDivisionError), override_attention(model, attend):
        raise ZeroDivisionError
    assert torch.equal(plain(model, IDS), expected)


def test_two_threads_watch_at_once() -> None:
    model, texts = tiny_model(), (IDS, IDS.flip(0))

    def watched(ids: torch.Tensor) -> torch.Tensor:
        with AttentionStats(model, {"": AttentionWindow((0, len(ids)), (0, len(ids)))}) as found:
            plain(model, ids)
        return found.mass("")

    expected = [watched(ids) for ids in texts]
    with in_the_middle(model, lambda: watched(texts[1])) as made:
        found = watched(texts[0])
    assert torch.equal(found, expected[0])
    assert torch.equal(made[0], expected[1])


def test_a_model_that_attends_otherwise_is_not_watched() -> None:
    model = tiny_model()
    model.set_attn_implementation("eager")
    with pytest.raises(UnsupportedModelError, match="attends by 'eager'"):
        AttentionStats(model, {}).__enter__()


def test_a_mark_is_on_its_keys_alone() -> None:
    attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
    module = tiny_model().model.layers[0].self_attn
    q, k, v = torch.rand(1, 4, 3, 16), torch.rand(1, 2, 3, 16), torch.rand(1, 2, 3, 16)
    own = torch.zeros(1)
    assert attend(module, q, with_attention(k[:], lambda *_, **__: (own, None)), v, None)[0] is own
    assert torch.equal(attend(module, q, k, v, None)[0], custom_attention.attend_plainly(module, q, k, v, None)[0])


def test_a_captured_step_attends_to_slots_without_a_word_to_the_model(read_only: Any) -> None:
    with everlong.MemoryModel(read_only, byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(300))
        computing = mm.frame.zones.computing
        step = GraphStep(computing._served, computing._cache, computing.phase)
        position = 123 + computing._served.first_position
        step.give(77, position)
        with torch.no_grad():
            logits = step.compute()
            expected = computing.alone(Tokens(torch.tensor([77])), position, keep_all=False)[0]
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


def test_transformers_own_generate_is_as_it_was() -> None:
    model = tiny_model()
    ids = IDS[None]
    cached = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    for at in range(ids.shape[1], cached.shape[1]):
        assert int(plain(model, cached[0, :at])[-1].argmax()) == int(cached[0, at])
