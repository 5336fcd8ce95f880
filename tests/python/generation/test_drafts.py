"""Drafts change no answer and no frame, whatever they say; where they come true, the model computes less often."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import everlong
from everlong.generation import answer_generator
from everlong.generation.drafts import Drafts
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.models import ARCHITECTURES, OWN_STATE

TEXT = random_text(1500)
QUESTION = random_text(30)


class Told(Drafts):
    """Drafts that somebody gives."""

    def __init__(self, answer: Sequence[int], wrong_every: int, seed: int) -> None:
        super().__init__([], 8)
        self._answer, self._wrong_every, self._said = list(answer), wrong_every, 0
        self._random, self._under_way = np.random.default_rng(seed), 0

    def next(self, token: int) -> Sequence[int]:
        self._said += 1
        draft = self._answer[self._said : self._said + int(self._random.integers(0, 6))]
        return [(one + 1) % 256 if self._random.integers(self._wrong_every) == 0 else one for one in draft]


def opened(kind: str, rope: str, draft_tokens: int, **changes: Any) -> everlong.MemoryModel:
    config = dataclasses.replace(SMALL, answer=dataclasses.replace(SMALL.answer, draft_tokens=draft_tokens, **changes))
    mm = everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), config=config)
    mm.read(TEXT)
    return mm


def forwards_of(mm: everlong.MemoryModel) -> list[int]:
    """The tokens of each forward that the model computes from now on."""
    lengths: list[int] = []
    mm.model.register_forward_pre_hook(
        lambda module, args, given: lengths.append(given["position_ids"].shape[-1]), with_kwargs=True
    )
    return lengths


def state_of(mm: everlong.MemoryModel) -> tuple[Any, ...]:
    cache = mm.frame.cache
    held = slice(cache.begin, cache.end)
    return (
        mm.frame.os.stream_end,
        mm.frame.os.rolling,
        mm.frame.os.trace(),
        [cache.k[:, :, held], cache.v[:, :, held], cache.cos[held], cache.sin[held]],
    )


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert one[:3] == other[:3]
    for mine, theirs in zip(one[3], other[3], strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
@pytest.mark.parametrize("wrong_every", [1, 4, 1000])
def test_any_draft_gives_the_same_answer_and_the_same_frame(
    kind: str, rope: str, wrong_every: int, monkeypatch
) -> None:
    with opened(kind, rope, 0) as mm:
        plain = mm.generate(QUESTION, max_new_tokens=60)
        expected = state_of(mm)
    drafts = Told(plain.token_ids, wrong_every, seed=wrong_every)
    monkeypatch.setattr(answer_generator, "Drafts", lambda texts, most: drafts)
    with opened(kind, rope, 8) as mm:
        lengths = forwards_of(mm)
        answer = mm.generate(QUESTION, max_new_tokens=60)
        same(state_of(mm), expected)
    assert answer == plain
    if (kind, rope) in OWN_STATE:
        assert max(lengths[-len(plain.token_ids) + 1 :]) == 1  # no token of theirs could be taken back
    elif wrong_every == 1000:
        assert max(lengths) > 1
        assert len([length for length in lengths if length < 7]) < len(plain.token_ids)


def test_drafts_and_recalls_on_the_way_do_not_meet() -> None:
    often = {"policy": ("prompt", "periodic", "recent"), "periodic_every": 7, "recent_every": 5, "protect_tokens": 0}
    with opened("llama", "default", 0, **often) as mm:
        plain = mm.generate(QUESTION, max_new_tokens=80)
        expected = state_of(mm)
    with opened("llama", "default", 8, **often) as mm:
        assert mm.generate(QUESTION, max_new_tokens=80) == plain
        same(state_of(mm), expected)


def test_sampled_answers_stay_as_they_are() -> None:
    def sampled(draft_tokens: int) -> tuple[int, ...]:
        with opened("qwen3", "default", draft_tokens) as mm:
            torch.manual_seed(3)
            return mm.generate(QUESTION, max_new_tokens=60, do_sample=True, temperature=0.3).token_ids

    assert sampled(8) == sampled(0)


def test_an_answer_that_repeats_itself_takes_fewer_forwards() -> None:
    with opened("llama", "default", 16) as mm:
        lengths = forwards_of(mm)
        answer = mm.generate("aaaa" * 8, max_new_tokens=200, eos_token_id=-1)
    repeated = len(answer.token_ids) - len({*zip(answer.token_ids, answer.token_ids[1:], strict=False)})
    assert repeated > 20, "this model was to repeat itself"
    assert len(lengths) < len(answer.token_ids)


def followed(texts: Sequence[Sequence[int]], answer: Sequence[int], most: int) -> Iterator[tuple[int, Sequence[int]]]:
    drafts = Drafts(texts, most)
    for token in answer:
        yield token, drafts.next(token)


small_texts = st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=3)


@given(small_texts, st.lists(st.integers(0, 3), max_size=60), st.integers(1, 9))
def test_a_draft_stands_somewhere_behind_the_newest_tokens(
    texts: list[list[int]], answer: list[int], most: int
) -> None:
    said: list[int] = []
    left: list[int] = []
    for token, draft in followed(texts, answer, most):
        said.append(token)
        if left and left[0] == token:
            assert draft == (), "a token of a draft was computed with it"
            left = left[1:]
            continue
        left = list(draft)
        assert len(draft) <= most
        if draft:
            everything = [*texts[:-1], [*(texts[-1] if texts else []), *said]]
            joined = [token for text in everything for token in text]
            run = [*said[-2:], *draft] if len(said) >= 2 else list(draft)
            assert any(joined[at : at + len(run)] == run for at in range(len(joined)))


def test_drafts_pause_when_they_do_not_come_true() -> None:
    texts = [[token % 50 for token in range(500)]]
    answer = [token for start in range(200) for token in (start % 50, (start + 1) % 50, 1000 + start)]
    drafted = sum(bool(draft) for _, draft in followed(texts, answer, 8))
    assert 0 < drafted < len(answer) / 20
