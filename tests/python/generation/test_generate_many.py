"""Several memories are asked at once, and each answers as it does alone."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.memories import answering_of

QUESTION = random_text(30, seed=9)
# Questions about it bring back several places.
FEW_WORDS = "The pass key for the shed is nine. " + " ".join(
    np.random.default_rng(1).choice(["river", "stone", "maple", "lantern", "harbor", "winter"], 900)
)


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


def noted(
    asked: list[tuple[everlong.MemoryModel, str]], **given: Any
) -> tuple[dict[int, everlong.Answer], BaseException | None]:
    """Ask each for 8 tokens, at once. Give the answers of those that have one, and what was raised."""
    mms, answers = [mm for mm, _ in asked], {}
    generate = everlong.MemoryModel.generate

    def note(self: everlong.MemoryModel, *given: Any, **named: Any) -> everlong.Answer:
        answers[mms.index(self)] = answer = generate(self, *given, **named)
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(everlong.MemoryModel, "generate", note)
        try:
            everlong.generate_many(asked, 8, **given)
        except BaseException as error:
            return answers, error
    return answers, None


def with_damage(folder: Path, model: Any, config: everlong.MemoryConfig) -> everlong.MemoryModel:
    """A memory whose payload is damaged on disk while it is open: only a reading of it finds out."""
    with everlong.MemoryModel(model, byte_tokenizer(), folder, config) as mm:
        mm.read(FEW_WORDS)
    memory = everlong.Memory.open(folder, read_only=True, host_bytes=1 << 20)
    mm = everlong.MemoryModel(model, byte_tokenizer(), memory, config)
    for segment in folder.rglob("*.kvseg"):
        stored = np.fromfile(segment, np.uint8)
        stored[200::512] ^= 0x55
        stored.tofile(segment)
    return mm


@pytest.mark.parametrize("damaged", [0, 2])
def test_a_damaged_page_is_told_to_its_own_question_alone(damaged: int, tmp_path: Path) -> None:
    model = tiny_model()
    config = SMALL.changed(search={"index": ("lexical",)}, answer={"recall_mode": "auto"})  # some pages are read again
    with contextlib.ExitStack() as undo:
        mms = [undo.enter_context(everlong.MemoryModel(model, byte_tokenizer(), config=config)) for _ in range(2)]
        for number, mm in enumerate(mms):
            mm.read(random_text(1500, seed=5 + number))
        expected = [mm.generate(QUESTION, 8, remember=False) for mm in mms]
        mms.insert(damaged, undo.enter_context(with_damage(tmp_path / "m", model, config)))
        asked = [(mm, "The pass key for the shed?" if at == damaged else QUESTION) for at, mm in enumerate(mms)]
        answers, error = noted(asked, remember=False)
        assert isinstance(error, everlong.CorruptMemoryError)
        assert [answers[number] for number in sorted(answers)] == expected
        assert damaged not in answers


class Stopping:
    """A logits processor that fails at the n-th token of the answer to a question of so many tokens."""

    def __init__(self, prompt: int, error: BaseException) -> None:
        self.prompt, self.error = prompt, error

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] == self.prompt + 2:
            raise self.error
        return scores


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3), OSError(28, "full")])
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_one_s_callback_is_its_own(error: BaseException, failing: int) -> None:
    questions = [QUESTION[: 8 + 10 * number] for number in range(3)]
    with memories(*[tiny_model("llama", "default")] * 3) as mms:
        expected = [mm.generate(one, 8, remember=False) for mm, one in zip(mms, questions, strict=True)]
        lengths = [len(answering_of(mm).prompt(one, True, None).ids) for mm, one in zip(mms, questions, strict=True)]
        ends = [mm.stream_tokens for mm in mms]
        asked = [*zip(mms, questions, strict=True)]
        answers, raised = noted(asked, logits_processor=[Stopping(lengths[failing], error)], remember=False)
        assert raised is error
        assert answers == {number: expected[number] for number in range(3) if number != failing}
        assert [mm.stream_tokens for mm in mms] == ends
        assert everlong.generate_many(asked, 8, remember=False) == expected
