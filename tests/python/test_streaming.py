"""An answer that is taken piece by piece, and what happens while it waits for its next piece to be asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import everlong
from test_exactness import SMALL, next_logits, random_text
from tiny_models import byte_tokenizer, tiny_model

TEXT = random_text(1200)
QUESTION = TEXT[300:330]


def open_model(folder: Path | None = None) -> everlong.MemoryModel:
    return everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, config=SMALL)


CALLS: dict[str, Callable[[everlong.MemoryModel], Any]] = {
    "read": lambda mm: mm.read(TEXT[:300], source="more").tokens,
    "generate": lambda mm: mm.generate(TEXT[600:630], max_new_tokens=8),
    "recall": lambda mm: mm.recall(TEXT[600:630]),
    "perplexity": lambda mm: mm.perplexity(TEXT[600:700]),
    "stream": lambda mm: list(mm.stream(TEXT[600:630], max_new_tokens=8)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_the_answer_that_waits_and_is_not_lost(name: str) -> None:
    outcomes = []
    for waiting in (False, True):
        with open_model() as mm:
            mm.read(TEXT, source="book")
            if waiting:
                answer = mm.stream(QUESTION, max_new_tokens=40, remember=False)
                next(answer)
                next(answer)
            outcome = CALLS[name](mm)
            if waiting:
                assert list(answer) == []
            outcomes.append((outcome, mm.stream_tokens, mm.memory.stats(), next_logits(mm, "so")))
    assert outcomes[0][:3] == outcomes[1][:3]
    assert torch.equal(outcomes[0][3], outcomes[1][3])


def test_what_was_said_by_then_stays_said() -> None:
    with open_model() as mm:
        mm.read(TEXT, source="book")
        answer = mm.stream(QUESTION, max_new_tokens=40)
        for _ in range(3):
            next(answer)
        mm.recall(QUESTION)
        assert mm.stream_tokens == len(TEXT) + len(QUESTION) + 2  # the third is in the frame once a fourth is asked for
        assert mm.memory.stats().tokens == mm.stream_tokens
        assert list(answer) == []


def test_answers_that_are_asked_for_in_turns_end_each_other() -> None:
    with open_model() as mm:
        mm.read(TEXT, source="book")
        first, second = (mm.stream(text, max_new_tokens=9, remember=False) for text in (QUESTION, TEXT[600:630]))
        said = [next(first), next(second)]
        assert list(first) == []
        said += second
        whole = mm.generate(TEXT[600:630], max_new_tokens=9, remember=False)
        assert "".join(said[1:]) == whole.text


def test_closing_ends_the_answer_that_waits(tmp_path: Path) -> None:
    with open_model(tmp_path / "m") as mm:
        mm.read(TEXT, source="book")
        expected = next_logits(mm, "so")
        answer = mm.stream(QUESTION, max_new_tokens=40, remember=False)
        next(answer)
    assert list(answer) == []
    with pytest.raises(everlong.ClosedError):
        next(mm.stream(QUESTION))
    with open_model(tmp_path / "m") as mm:
        assert mm.stream_tokens == len(TEXT)
        assert torch.allclose(next_logits(mm, "so"), expected, atol=1e-5)


def test_an_answer_that_nobody_holds_is_closed_at_once() -> None:
    with open_model() as mm:
        mm.read(TEXT, source="book")
        next(mm.stream(QUESTION, max_new_tokens=40, remember=False))
        assert mm.frame.os.archiving


def test_a_signal_speaks_to_the_answer_that_waits() -> None:
    with open_model() as mm:
        mm.read(TEXT, source="book")
        answer = mm.stream(QUESTION, max_new_tokens=9)
        said = [next(answer)]
        mm.signal("summarize")
        assert "".join([*said, *answer]) != ""
        assert any(event["what"] == "summarize signal" for event in mm.trace())
        assert mm.stream_tokens == len(TEXT) + len(QUESTION) + 9


@pytest.mark.parametrize("recall", [True, False])
def test_a_signal_brings_back_what_the_waiting_answer_may(recall: bool) -> None:
    config = dataclasses.replace(SMALL, index=("lexical",), policy=("prompt", "signal"), protect_tokens=0)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read("QUARTZ " + random_text(500), source="a")
        mm.read("QUARTZ " + random_text(500, seed=1), source="b")
        mm.read(random_text(700, seed=2), source="c")
        answer = mm.stream("QUARTZ", max_new_tokens=6, recall=recall, remember=False, where=everlong.Where(source="a"))
        next(answer)
        mm.signal("retrieve")
        assert {found.source for found in mm.last_recalled} == ({"a"} if recall else set())
        answer.close()
        mm.signal("retrieve")
        assert len(mm.last_recalled) > 0
