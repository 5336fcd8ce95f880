"""everlong as a transformers pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

import everlong
from everlong.generation.pipeline import TASK
from support import SMALL, byte_tokenizer, random_text, tiny_model


@pytest.fixture(scope="module")
def pipe():
    return transformers.pipeline(TASK, model=tiny_model(), tokenizer=byte_tokenizer())


def test_pipeline_answers_as_the_model_does(pipe) -> None:
    text, questions = random_text(2000), [random_text(30, seed=2), random_text(30, seed=3)]
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read(text, source="context")
        expected = [mm.generate(question, max_new_tokens=8, remember=False) for question in questions]
    one = pipe(text, question=questions[0], config=SMALL, max_new_tokens=8)
    first = expected[0]
    assert one == {"answer": first.text, "recalled": first.recalled, "confidence": first.confidence}
    several = pipe(text, questions=questions, config=SMALL, max_new_tokens=8)
    assert [answer["answer"] for answer in several["answers"]] == [answer.text for answer in expected]


def test_pipeline_keeps_a_memory(pipe, tmp_path: Path) -> None:
    text, question = random_text(1500), random_text(30, seed=2)
    first = pipe(text, question=question, memory=tmp_path / "m", config=SMALL, max_new_tokens=4)
    second = pipe("", question=question, memory=tmp_path / "m", config=SMALL, max_new_tokens=4)
    assert first["recalled"] == second["recalled"]
    assert everlong.Memory.open(tmp_path / "m", read_only=True).stats().tokens == 1500


def test_parameters_of_the_construction_hold_for_every_call(tmp_path: Path) -> None:
    text, question = random_text(1500), random_text(30, seed=2)
    made = transformers.pipeline(
        TASK,
        model=tiny_model(),
        tokenizer=byte_tokenizer(),
        memory=tmp_path / "m",
        config=SMALL,
        source="book",
        max_new_tokens=4,
    )
    first = made(text, question=question)
    assert len(first["answer"]) <= 4
    assert {recall.source for recall in first["recalled"]} == {"book"}
    assert len(made("", question=question, max_new_tokens=8)["answer"]) > len(first["answer"])
    assert len(made("", question=question, do_sample=True)["answer"]) <= 4
    with everlong.Memory.open(tmp_path / "m", read_only=True) as memory:
        assert memory.stats().tokens == 1500


def test_pipeline_needs_a_question(pipe) -> None:
    with pytest.raises(ValueError, match="question is needed"):
        pipe("text")
    with pytest.raises(ValueError, match="either question or questions"):
        pipe("text", question="a", questions=["b"])


def test_contexts_are_taken_one_by_one(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    pipe = transformers.pipeline(TASK, model=tiny_model(), tokenizer=tokenizer)
    texts, asked = [random_text(300), random_text(300, seed=2)], {"question": "and then", "max_new_tokens": 2}
    with pytest.raises(ValueError, match="batch_size=1 takes them one by one"):
        pipe(texts, batch_size=2, memory=tmp_path / "m", config=SMALL, **asked)
    assert pipe(texts, config=SMALL, **asked) == [pipe(text, config=SMALL, **asked) for text in texts]
