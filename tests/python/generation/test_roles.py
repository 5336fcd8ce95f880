"""What was read, asked and said: a question is no evidence for its own answer, and a conversation remembers both."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import everlong
from everlong.text.prompt import quoting_prompt
from support import SMALL, TINY_MEMORY, byte_tokenizer, changed, random_text, tiny_model

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
    config = changed(TINY_MEMORY, **changes)
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
        for conversation in (everlong.Where(role=("read", "said")), everlong.Where(said_as_read=True)):
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
    config = SMALL.changed(search={"index": ("lexical",)}, answer={"policy": "recent", "recent_every": 3})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=config) as mm:
        mm.read(random_text(600))
        for number in range(8):
            mm.generate(f"{number} and then " * 4, max_new_tokens=40)
        asked = {block.id for block in mm.memory.blocks() if block.role == "asked"}
        restored = [event for event in mm.trace() if event["what"] == "restore" and event["tokens"] > 0]
        assert restored
        assert asked.isdisjoint(run["block"] for event in restored for run in event["restored"])


def before_the_question(mm: everlong.MemoryModel, question: str, **how: Any) -> tuple[str, int]:
    """What of the conversation stands before what a question recalls, and how much text lies behind that."""
    mm.generate(question, max_new_tokens=1, remember=False, **how)
    newest = [event for event in mm.trace() if event["what"] == "restore"][-1]["restored"]
    roles = {block.id: block.role for block in mm.memory.blocks()}
    core = mm.memory.core
    ids: list[int] = []
    for run in newest:
        if roles[run["block"]] in ("asked", "said"):
            ids += core.blocks.token_ids(run["stream"], run["begin"], run["end"]).tolist()
    rest = [roles[run["block"]] for run in newest]
    assert rest == sorted(rest, key=lambda role: role == "read"), "turns, then what was recalled"
    return mm.tokenizer.decode(ids), rest.count("read")


@pytest.mark.parametrize("mode", ["kv", "auto", "text"])
def test_a_conversation_stands_before_what_a_question_recalls(tmp_path: Path, mode: Any) -> None:
    """Said two turns before, and there for the next question; between what came back for it and it stands nothing."""
    open_it: dict[str, Any] = {
        "recall_mode": mode,
        "recalled_tokens": 256,
        "frame_tokens": 768,
        "conversation_tokens": 128,
    }
    with open_model(tmp_path / "memory", **open_it) as mm:
        mm.read(random_text(3000), source="book")
        said = [mm.generate(turn, max_new_tokens=6).text for turn in ("my name is Q!Z%", "and then", "what of it")]
        window, recalled = before_the_question(mm, "what is my name")
        assert window == f"my name is Q!Z%{said[0]}and then{said[1]}what of it{said[2]}"
        assert recalled > 0
        mm.generate("what is my name", max_new_tokens=2)
        assert mm.frame.os.rolling[1] - mm.frame.os.rolling[0] == len("what is my name") + 2
        # In a later process, and where the pages are named.
    with open_model(tmp_path / "memory", **open_it) as mm:
        assert before_the_question(mm, "what of it")[0].startswith("my name is Q!Z%")
        assert before_the_question(mm, "what of it", recall=mm.memory.core.blocks.pages()[1:3])[0].startswith(
            "my name is Q!Z%"
        )
        assert mm.last_recalled == ()
        mm.memory.forget(where=everlong.Where(role="said"))
        assert before_the_question(mm, "what of it")[0].startswith("my name is Q!Z%and then")
        mm.read("something else", source="book")
        assert before_the_question(mm, "what of it")[0] == "", "another text has been read since"


def test_of_a_long_conversation_the_newest_stands_before_what_a_question_recalls() -> None:
    with open_model(recalled_tokens=128, frame_tokens=640, conversation_tokens=48) as mm:
        mm.read(random_text(3000), source="book")
        for number in range(12):
            mm.generate(f"question {number:02}", max_new_tokens=5)
        window, recalled = before_the_question(mm, "tell me")
    assert "question 11" in window
    assert "question 05" not in window
    assert recalled > 0


def test_a_conversation_in_a_memory_opened_for_reading_stays_in_the_window(tmp_path: Path) -> None:
    with open_model(tmp_path / "memory") as mm:
        mm.read(random_text(3000), source="book")
    with (
        everlong.Memory.open(tmp_path / "memory", read_only=True) as memory,
        everlong.MemoryModel(tiny_model(), byte_tokenizer(), memory, TINY_MEMORY) as mm,
    ):
        mm.generate("my name is Q!Z%", max_new_tokens=4)
        mm.generate("and", max_new_tokens=4)
        begin, end = mm.frame.os.rolling
        assert end - begin == len("my name is Q!Z%") + 4 + len("and") + 4


def test_what_a_citation_was_is_said() -> None:
    with open_model() as mm:
        mm.read(random_text(1500), source="book")
        mm.generate("Q!Z%", max_new_tokens=4)
        mm.read(random_text(1500), source="book")
        assert {recall.role for recall in mm.recall("Q!Z%", where=everlong.Where(role="asked"))} == {"asked"}
        assert {recall.role for recall in mm.recall(random_text(40), where=everlong.Where(role="read"))} == {"read"}


def test_calibration_quotes_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_model(index=("heads", "lexical")) as mm:
        for _ in range(12):
            mm.generate("question " * 8, max_new_tokens=4)
        with pytest.raises(everlong.EverlongError, match="8 pages that were read, the memory has 0"):
            mm.calibrate()
        mm.read(random_text(3000), source="book")
        quoted: list[str] = []
        monkeypatch.setattr(
            "everlong.retrieval.retrieval_heads.quoting_prompt",
            lambda tokenizer, quote: (quoted.append(quote), quoting_prompt(tokenizer, quote))[1],
        )
        mm.calibrate()
    assert len(quoted) == 12
    assert not any("question question" in quote for quote in quoted)
