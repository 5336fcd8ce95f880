"""Notes of a survey: which lines are noted, where they stand, and how often words occur."""

from __future__ import annotations

import collections
import itertools
import random
import re
from collections.abc import Iterable

import hypothesis.strategies as st
import pytest
from hypothesis import given

import everlong
from everlong.memory.where import EVERYWHERE, Where
from everlong.retrieval.notes import Notes, take_notes
from support import SMALL, byte_tokenizer, tiny_model

NAMES = ("AXBQZ", "KLPWR", "MVTNC", "OGHSD", "UFJEY")
FILLER = "The sea was wide and the wind went on. Nobody came to the house. A lamp was lit at the gate, as ever."


def notes_of(texts: Iterable[tuple[str, str]], question: str, where: Where = EVERYWHERE, most: int = 4096) -> Notes:
    """Read texts by their sources, and take notes."""
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        for source, text in texts:
            mm.read(text, source=source)
        notes = take_notes(mm.memory.core, mm.tokenizer, question, where, mm.frame.os.stream, most)
        for note in notes.lines:  # each stands where it says
            ids = mm.memory.core.blocks.token_ids(note.stream, note.begin, note.end)
            assert mm.tokenizer.decode(ids.tolist()) == note.text
        return notes


@given(order=st.permutations(range(len(NAMES))), hops=st.integers(1, len(NAMES) - 1))
def test_a_chain_of_names_is_noted_wherever_its_links_stand(order: list[int], hops: int) -> None:
    links = [f"VAR {NAMES[0]} = 48213.", *(f"VAR {b} = VAR {a}." for a, b in itertools.pairwise(NAMES))]
    links = links[: hops + 1]
    text = "\n\n".join(f"{FILLER} {links[at]} {FILLER}" if at < len(links) else FILLER for at in order)
    notes = notes_of([("book", text)], "Which variables are assigned the value 48213?")
    assert {note.text for note in notes.lines} == set(links)
    assert list(notes.lines) == sorted(notes.lines, key=lambda note: note.begin)


@given(seed=st.integers(0, 2**16))
def test_counts_are_those_of_the_text(seed: int) -> None:
    draw = random.Random(seed)
    words = [draw.choice(["lamp", "Lamp", "sea", "42", "wind", "été", "don't"]) for _ in range(200)]
    text = " ".join(words)
    counted = collections.Counter(re.findall(r"\w+", text.casefold()))
    assert dict(notes_of([("list", text)], "How often?").counts) == dict(counted)


def test_letters_of_a_script_without_spaces_are_counted_one_by_one() -> None:
    notes = notes_of([("book", "船在海上。風很大。船來了。")], "船?")
    assert dict(notes.counts)["船"] == 2
    assert [note.text for note in notes.lines] == ["船在海上。", "船來了。"]


def test_only_text_that_passes_is_looked_at() -> None:
    texts = [("a", f"The captain has 3 ships. {FILLER}"), ("b", f"The captain has 9 ships. {FILLER}")]
    notes = notes_of(texts, "How many ships has the captain?", Where(source="b"))
    assert [note.text for note in notes.lines] == ["The captain has 9 ships."]
    assert dict(notes.counts)["ships"] == 1
    assert len(notes_of(texts, "How many ships has the captain?").lines) == 2


def test_no_more_is_noted_than_there_is_room_for() -> None:
    text = " ".join(f"Ship {n} came in." for n in range(60))
    notes = notes_of([("log", text)], "Which ship came in?", most=100)
    assert 0 < sum(note.end - note.begin for note in notes.lines) <= 100


def test_a_rare_word_counts_more_than_common_ones_of_a_short_text() -> None:
    """How common "does" and "come" are, a text of six lines cannot tell."""
    turns = ["Mara: what does he want", "Kofi: come home", "Mara: it is late", "Kofi: so come here"]
    told = ["Mara: then there is the regatta", "Kofi: no regatta for me"]
    text = "\n".join([*turns[:2], told[0], *turns[2:], told[1]])
    with everlong.MemoryModel.from_pretrained("smollm2") as mm:
        mm.read(text)
        question = "In which session does the regatta come up?"
        notes = take_notes(mm.memory.core, mm.tokenizer, question, EVERYWHERE, mm.frame.os.stream, 4096)
    assert [note.text for note in notes.lines] == told


@pytest.mark.parametrize("gap", [" ", "x"])
def test_of_a_sentence_without_an_end_a_part_is_noted(gap: str) -> None:
    text = gap.join(["and so on"] * 90 + ["the key is Zq7"] + ["and so on"] * 90)
    notes = notes_of([("book", text)], "Zq7 key?" if gap == " " else "and?", most=450)
    assert notes.lines
    assert all(len(note.text) <= 400 for note in notes.lines)
    assert gap == "x" or "the key is Zq7" in notes.lines[0].text


@pytest.mark.parametrize("question", ["Zebra?", "?", "..."])
def test_a_question_of_which_no_line_tells_has_no_notes(question: str) -> None:
    assert notes_of([("book", FILLER)], question).lines == ()


def test_what_was_asked_is_not_looked_at() -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read("The captain has 3 ships.", source="log")
        mm.generate("How many ships has the captain?", 4)
        mm.read(FILLER, source="book")
        notes = take_notes(mm.memory.core, mm.tokenizer, "ships of the captain", EVERYWHERE, mm.frame.os.stream, 4096)
        assert [note.text for note in notes.lines] == ["The captain has 3 ships."]
