"""Several memories are asked at once, and each answers as it does alone."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

import everlong
from support import SMALL, byte_tokenizer, random_text, tiny_model

QUESTION = random_text(30, seed=9)


@contextlib.contextmanager
def memories(*models: Any) -> Iterator[list[everlong.MemoryModel]]:
    with contextlib.ExitStack() as undo:
        made = []
        config = dataclasses.replace(SMALL, answer=dataclasses.replace(SMALL.answer, draft_tokens=0))
        for number, model in enumerate(models):
            mm = undo.enter_context(everlong.MemoryModel(model, byte_tokenizer(), config=config))
            mm.read(random_text(900 + 100 * number, seed=number))
            made.append(mm)
        yield made


def test_each_memory_answers_and_remembers_as_alone() -> None:
    with memories(*[tiny_model("llama", "default") for _ in range(3)]) as alone:
        expected = [mm.generate(QUESTION, 30) for mm in alone]
        ends = [mm.stream_tokens for mm in alone]
    with memories(*[tiny_model("llama", "default")] * 3) as mms:
        lengths: list[int] = []
        mms[0].model.register_forward_pre_hook(
            lambda module, args, given: lengths.append(given["position_ids"].shape[-1]), with_kwargs=True
        )
        assert everlong.generate_many([(mm, QUESTION) for mm in mms], 30) == expected
        assert [mm.stream_tokens for mm in mms] == ends
        assert lengths.count(3) >= 20  # a token of each
        assert everlong.generate_many([(mm, QUESTION) for mm in mms], 5, recall=False, remember=False)[0].recalled == ()


def test_memories_of_different_models_are_answered_one_after_another() -> None:
    with memories(tiny_model("llama", "default"), tiny_model("gemma3", "nested")) as mms:
        expected = [mm.generate(QUESTION, 12, remember=False) for mm in mms]
        assert everlong.generate_many([(mm, QUESTION) for mm in mms], 12, remember=False) == expected


def test_one_that_fails_leaves_the_others_their_answers() -> None:
    with memories(*[tiny_model("llama", "default")] * 2) as mms:
        ends = [mm.stream_tokens for mm in mms]
        with pytest.raises(ValueError, match="question"):
            everlong.generate_many([(mms[0], " "), (mms[1], QUESTION)], 5)
        assert mms[0].stream_tokens == ends[0]
        assert mms[1].stream_tokens > ends[1]
        with pytest.raises(ValueError, match="asked twice"):
            everlong.generate_many([(mms[0], QUESTION), (mms[0], QUESTION)], 5)
        assert everlong.generate_many([]) == []
