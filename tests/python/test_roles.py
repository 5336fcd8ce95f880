"""What was read, asked and said: a question is no evidence for its own answer, and a conversation remembers both."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

import everlong
from test_exactness import SMALL, random_text
from tiny_models import TINY_MEMORY, byte_tokenizer, tiny_model

# Symbols that no text of `random_text` has. What is asked shares more of them with other questions than with any fact.
KEYS = "!#$%&*+/<>?@[]^_{|}~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ASKED = '"(:)"'
EVERY_ROLE = everlong.Where(role=("read", "asked", "said"))


def facts(count: int) -> list[str]:
    rng = random.Random(3)
    return ["".join(rng.sample(KEYS, 4)) for _ in range(count)]


def haystack(keys: list[str]) -> str:
    """A fact in every 400 letters, its question in none."""
    text = random_text(400 * len(keys) + 800)
    parts = [text[400 * i : 400 * i + 200] + key + text[400 * i + 200 : 400 * i + 400] for i, key in enumerate(keys)]
    return "".join(parts) + text[-800:]


def question_of(key: str) -> str:
    return f"{ASKED} {key} {6 * ASKED}"  # long enough for the window to forget the first ones


def open_model(memory: Path | None = None, **changes: Any) -> everlong.MemoryModel:
    config = dataclasses.replace(TINY_MEMORY, **changes)
    return everlong.MemoryModel(tiny_model(), byte_tokenizer(), memory, config)


def blocks_behind(mm: everlong.MemoryModel, recall: everlong.Recall) -> list[everlong.Block]:
    begin, end = recall.span
    return [block for block in mm.memory.blocks() if block.span[0] < end and block.span[1] > begin]


def test_a_question_that_was_asked_is_no_evidence_for_another() -> None:
    """Whatever was asked before, each question brings back what it would have as the first one."""
    keys = facts(12)
    with open_model() as alone, open_model() as talking:
        for mm in (alone, talking):
            mm.read(haystack(keys), source="facts")
        old_questions = 0
        for number, key in enumerate(keys):
            old_questions += sum(
                block.role == "asked"
                for recall in talking.recall(question_of(key), where=EVERY_ROLE)
                for block in blocks_behind(talking, recall)
            )
            first = alone.generate(question_of(key), max_new_tokens=4, remember=False).recalled[0]
            answer = talking.generate(question_of(key), max_new_tokens=4)
            assert key in first.text
            assert answer.recalled[0].span == first.span, number
            assert {block.role for recall in answer.recalled for block in blocks_behind(talking, recall)} <= {
                "read",
                "said",
            }
        assert old_questions > 12, "without roles they would come back"


def test_every_block_has_one_role_whatever_its_length() -> None:
    with open_model() as mm:
        mm.read(random_text(1000), source="book")
        said = [mm.generate(f"number {i}", max_new_tokens=3 + i) for i in range(3)]
        mm.read("more", source="book")
        roles = [(block.role, block.span[1] - block.span[0], block.source) for block in mm.memory.blocks()]
        lengths = [(len(f"number {i}"), answer.tokens) for i, answer in enumerate(said)]
    behind = [one for asked, said in lengths for one in (("asked", asked, ""), ("said", said, ""))]
    assert roles[-7:] == [*behind, ("read", 4, "book")]
    assert {role for role, _, _ in roles[:-7]} == {"read"}


def test_the_trace_says_where_an_answer_begins() -> None:
    with open_model() as mm:
        mm.read(random_text(300))
        mm.generate("and then", max_new_tokens=4)
        ends = [event["ended_by"] for event in mm.trace() if event["what"] == "archive"]
    assert ends[-3:] == ["text", "answer", "text"]


def test_a_conversation_remembers_what_was_asked_and_said(tmp_path: Path) -> None:
    """By role, and in another process too; forked and exported as well."""
    first = "What of Q!Z%?"
    with open_model(tmp_path / "memory") as mm:
        mm.generate(first, max_new_tokens=4)
        mm.read(random_text(2500), source="book")
        found = mm.recall("Q!Z% ?", where=everlong.Where(role="asked"))
        assert [recall.text for recall in found] == [first]
        mm.memory.fork(tmp_path / "fork").close()
        mm.memory.export(tmp_path / "file")
        everlong.Memory.import_file(tmp_path / "file", tmp_path / "imported").close()
        there = [(block.role, block.span) for block in mm.memory.blocks()]
    for folder in ("memory", "fork", "imported"):
        with open_model(tmp_path / folder) as mm:
            assert [(block.role, block.span) for block in mm.memory.blocks()] == there
            assert [r.text for r in mm.recall("Q!Z%", where=everlong.Where(role="asked"))] == [first], folder
            assert all(
                block.role == "said"
                for r in mm.recall("Q!Z%", where=everlong.Where(role="said"))
                for block in blocks_behind(mm, r)
            )
            assert all(recall.source == "book" for recall in mm.recall("Q!Z%", where=everlong.Where(role="read")))


def test_what_was_said_counts_less_but_in_a_conversation() -> None:
    """The same words, read and said: what was read comes first, unless both have the same weight."""
    key = "Q!Z%"
    with open_model(neighbours=0, groups=2) as mm:
        mm.read(random_text(700) + key + random_text(700))
        # As if the model had said it, in fewer words.
        mm.frame.extend(mm.tokenizer(key, return_tensors="pt")["input_ids"][0], "generated")
        mm.read(random_text(1200), source="later")
        said = next(block for block in mm.memory.blocks() if block.role == "said")
        spans = [recall.span for recall in mm.recall(key)]
        assert said.span in spans[1:]
        conversation = everlong.Where(role=("read", "said"))
        assert mm.recall(key, where=conversation)[0].span == said.span


@pytest.mark.parametrize("role", ["heard", ("read", "heard"), (), [], 3, ("read", 3)])
def test_a_role_that_there_is_not_is_refused(role: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"role|name"):
        everlong.Where(role=role)


def test_roles_are_kept_as_they_are_given() -> None:
    assert everlong.Where(role="asked").core()["roles"] == ["asked"]
    assert everlong.Where(role=["read", "said"]) == everlong.Where(role=("read", "said"))
    assert everlong.Where().core()["roles"] == []


def test_the_newest_blocks_are_none_that_were_asked() -> None:
    config = dataclasses.replace(SMALL, index=("lexical",), policy="recent", recent_every=3)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(random_text(600))
        for number in range(8):
            mm.generate(f"{number} and then " * 4, max_new_tokens=40)
        asked = {block.id for block in mm.memory.blocks() if block.role == "asked"}
        restored = [event for event in mm.trace() if event["what"] == "restore" and event["tokens"] > 0]
        assert restored
        assert asked.isdisjoint(run["block"] for event in restored for run in event["restored"])
