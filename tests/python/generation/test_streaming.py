"""An answer that is taken piece by piece, and what happens while it waits for its next piece to be asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import everlong
from support import SMALL, byte_tokenizer, next_logits, open_model, random_text, tiny_model

TEXT = random_text(1200)
QUESTION = TEXT[300:330]


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
            stats = mm.memory.stats()
            # How many pages a catalog in RAM takes follows from what was written on the way.
            held = dataclasses.replace(stats, host_bytes=stats.host_bytes - stats.catalog_bytes, catalog_bytes=0)
            outcomes.append((outcome, mm.stream_tokens, held, next_logits(mm, "so")))
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
    config = SMALL.changed(search={"index": ("lexical",)}, answer={"policy": ("prompt", "signal"), "protect_tokens": 0})
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


class Meddling:
    """A streamer that calls its own MemoryModel while an answer is being given, and notes what comes of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call, self.outcomes, self.ended = call, [], 0

    def put(self, tokens: torch.Tensor) -> None:
        try:
            self.outcomes.append(self.call())
        except everlong.MemoryBusyError as error:
            self.outcomes.append(error)

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("remember", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False], ids=["another thread", "from its streamer"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_beside_another_is_refused_and_changes_nothing(name: str, elsewhere: bool, remember: bool) -> None:
    answers = []
    for meddled in (False, True):
        with open_model() as mm:
            mm.read(TEXT, source="book")

            def call(mm: everlong.MemoryModel = mm) -> Any:
                if not elsewhere:
                    return CALLS[name](mm)
                with ThreadPoolExecutor(1) as pool:
                    return pool.submit(CALLS[name], mm).result()

            streamer = Meddling(call) if meddled else None
            answers.append(mm.generate(QUESTION, max_new_tokens=5, remember=remember, streamer=streamer))
            if streamer is not None:
                assert len(streamer.outcomes) == 6  # the prompt, too
                assert all(isinstance(outcome, everlong.MemoryBusyError) for outcome in streamer.outcomes)
            before = mm.stream_tokens
            assert mm.read(TEXT[:200], source="more").tokens == 200
            assert mm.stream_tokens == before + 200
            assert mm.memory.stats().tokens == mm.stream_tokens
    assert answers[0] == answers[1]


def test_a_streamer_hears_the_end_of_an_answer_that_was_refused() -> None:
    with open_model() as mm:
        streamer = Meddling(lambda: None)
        with pytest.raises(TypeError):
            mm.stream(QUESTION, streamer=streamer, where=5)  # type: ignore[arg-type]
        assert streamer.ended == 1
