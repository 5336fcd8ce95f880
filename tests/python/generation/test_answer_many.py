"""Questions that are answered together have the answers that they have one after another."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
import torch

import everlong
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.memories import answering_of
from support.models import ARCHITECTURES

TEXT = random_text(1500)
QUESTIONS = [TEXT[first : first + 20 + 3 * (first % 7)] for first in range(100, 1300, 110)]


def opened(kind: str, rope: str, at_once: int, **changes: Any) -> everlong.MemoryModel:
    answer = dataclasses.replace(SMALL.answer, at_once=at_once, **changes)
    mm = everlong.MemoryModel(
        tiny_model(kind, rope), byte_tokenizer(), config=dataclasses.replace(SMALL, answer=answer)
    )
    mm.read(TEXT)
    return mm


@pytest.mark.parametrize(("kind", "rope"), ARCHITECTURES)
def test_every_architecture_answers_as_one_after_another(kind: str, rope: str) -> None:
    with opened(kind, rope, 1) as mm:
        expected = mm.answer_many(QUESTIONS, max_new_tokens=40)
    with opened(kind, rope, 5) as mm:
        assert mm.answer_many(QUESTIONS, max_new_tokens=40) == expected
        assert mm.last_recalled == expected[-1].recalled
        assert mm.last_confidence == expected[-1].confidence


@pytest.mark.parametrize(("kind", "at_once"), [("qwen3_next", 5), ("llama", 1)])
def test_what_cannot_be_joined_is_answered_in_the_thread_that_asks(kind: str, at_once: int) -> None:
    threads: set[int] = set()
    with opened(kind, "partial" if kind == "qwen3_next" else "default", at_once) as mm:
        mm.model.register_forward_pre_hook(lambda module, args: threads.add(threading.get_ident()))
        mm.answer_many(QUESTIONS[:3], max_new_tokens=3)
    assert threads == {threading.get_ident()}


def test_the_text_of_200_tokens_is_the_same() -> None:
    given = {"max_new_tokens": 200, "eos_token_id": -1}
    with opened("qwen3", "default", 1) as mm:
        expected = mm.answer_many(QUESTIONS[:8], **given)
    with opened("qwen3", "default", 8) as mm:
        assert mm.answer_many(QUESTIONS[:8], **given) == expected
    assert {one.tokens for one in expected} == {200}


@pytest.mark.parametrize("mode", ["kv", "text", "auto"])
def test_recalls_on_the_way_and_filters_hold_for_each_alone(mode: Any) -> None:
    often: dict[str, Any] = {"policy": ("prompt", "periodic"), "periodic_every": 7, "protect_tokens": 0}
    places = [everlong.Where(tags="odd") if at % 2 else everlong.Where() for at in range(len(QUESTIONS))]

    def answers(at_once: int) -> list[everlong.Answer]:
        with opened("llama", "default", at_once, recall_mode=mode, **often) as mm:
            mm.read(random_text(600, seed=4), source="more", tags="odd")
            return mm.answer_many(QUESTIONS, max_new_tokens=30, where=places)

    assert answers(6) == answers(1)


def test_sampling_is_the_same_every_time() -> None:
    def sampled() -> list[tuple[int, ...]]:
        with opened("llama", "default", 4) as mm:
            torch.manual_seed(5)
            answers = mm.answer_many(QUESTIONS, max_new_tokens=20, do_sample=True, temperature=0.8)
        return [one.token_ids for one in answers]

    first = sampled()
    assert first == sampled()
    assert len(set(first)) > 1


def test_nothing_of_it_stays_but_the_trace() -> None:
    with opened("gemma3", "nested", 4) as mm:
        hooks = len(mm.frame.served.rotary._forward_hooks)
        before, blocks, events = mm.stream_tokens, mm.memory.blocks(), len(mm.trace())
        mm.answer_many(QUESTIONS, max_new_tokens=5)
        assert (mm.stream_tokens, mm.memory.blocks()) == (before, blocks)
        assert len(mm.frame.served.rotary._forward_hooks) == hooks
        told = mm.trace()[events:]
        assert sum(event["what"] == "recall" for event in told) >= len(QUESTIONS)
        assert {event["branched_at"] for event in told} == {before}


def test_an_interrupt_ends_all_of_them() -> None:
    def interrupt(number: int, answer: everlong.Answer) -> None:
        raise KeyboardInterrupt

    with opened("llama", "default", 4) as mm:
        expected = mm.generate(QUESTIONS[0], max_new_tokens=9, remember=False)
        with pytest.raises(KeyboardInterrupt):
            mm.answer_many(QUESTIONS, max_new_tokens=9, on_answer=interrupt)
        assert mm.generate(QUESTIONS[0], max_new_tokens=9, remember=False) == expected


def test_answers_are_told_in_order_until_one_fails() -> None:
    told: list[int] = []

    def processor(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] == failing + 3:
            raise ValueError("the fourth question")
        return scores

    with opened("llama", "default", 3) as mm:
        asked = [QUESTIONS[0][:11], QUESTIONS[1][:12], QUESTIONS[2][:13], QUESTIONS[3][:19], QUESTIONS[4][:14]]
        failing = max(len(answering_of(mm).prompt(one, True, None).ids) for one in asked)
        with pytest.raises(ValueError, match="the fourth question"):
            mm.answer_many(
                asked,
                max_new_tokens=4,
                on_answer=lambda number, one: told.append(number),
                logits_processor=[processor],
                eos_token_id=-1,
            )
    assert told == [0, 1, 2]
