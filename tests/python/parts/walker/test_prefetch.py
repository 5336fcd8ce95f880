"""What a walk comes to is read from disk into RAM before it is asked for, and nothing else changes."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everlong
from everlong.errors import CorruptMemoryError
from everlong.parts.walker import Walker
from everlong.parts.walker.prefetch import Prefetch, Prefetcher
from support import SMALL, TINY_MEMORY, byte_tokenizer, open_model, random_text

FACTS = (
    "The tin lantern belongs to Orla Vesk. " * 3,
    "Orla Vesk lives in the town of Brunnow. " * 3,
    "The mayor of Brunnow is called Hesper Lode. " * 3,
)
QUESTION = "Where does the owner of the tin lantern live?"
ASKING = SMALL.changed(
    search={"index": ("lexical",)}, answer={"policy": ("prompt", "periodic"), "periodic_every": 8, "quotes": 0}
)
WALKING = ASKING.with_part(Walker(searches=False, ahead_every=4))


def text() -> str:
    return "".join(
        random_text(700, seed=seed) + "\n\n" + fact + "\n\n" for seed, fact in enumerate(FACTS)
    ) + random_text(1500, seed=9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_model(tmp_path / "m", ASKING) as mm:
        mm.read(text(), source="book")
    return tmp_path / "m"


def said(answer: everlong.Answer) -> tuple[Any, ...]:
    return answer.token_ids, [(recall.block_id, recall.span, recall.score) for recall in answer.recalled]


@pytest.mark.parametrize("remember", [True, False])
def test_answers_are_the_same_with_and_without(folder: Path, tmp_path: Path, remember: bool) -> None:
    with everlong.Memory.open(folder) as memory:
        memory.fork(tmp_path / "other")
    with open_model(folder, ASKING) as mm:
        without = [said(mm.generate(QUESTION, max_new_tokens=20, remember=remember)) for _ in range(2)]
        assert not [event for event in mm.trace() if event["what"] == "prefetch"]
    with open_model(tmp_path / "other", WALKING) as mm:
        walked = [said(mm.generate(QUESTION, max_new_tokens=20, remember=remember)) for _ in range(2)]
        mm.searcher.settle()
        ahead = [event for event in mm.trace() if event["what"] == "prefetch"]
    assert walked == without
    assert ahead
    assert all((event["branched_at"] is None) == remember for event in ahead)


def test_only_what_passes_the_filter_is_read_ahead(tmp_path: Path) -> None:
    days = [datetime.datetime(2026, 5, day, tzinfo=datetime.UTC) for day in (1, 2)]
    with open_model(tmp_path / "m", WALKING) as mm:
        for day, fact in zip((*days, days[0]), FACTS, strict=True):
            mm.read(random_text(300, seed=day.day) + fact, source=f"day {day.day}", happened=day)
        mm.read(random_text(900, seed=9), source="later", happened=days[0])
        passing = {block.id for block in mm.memory.blocks(source="day 2")}
        for where in (everlong.Where(happened_after=days[1]), everlong.Where(source="day 2")):
            mm.searcher.prefetch(byte_tokenizer()(QUESTION)["input_ids"], 0, where)
            mm.searcher.settle()
            newest = [event for event in mm.trace() if event["what"] == "prefetch"][-1]
            assert newest["prefetched"]
            assert {page["block"] for page in newest["prefetched"]} <= passing


def test_a_page_that_was_read_ahead_is_served_from_ram(folder: Path) -> None:
    with everlong.Memory.open(folder, read_only=True) as memory:
        pages = memory.core.blocks.pages()
        whole = [read(memory, page) for page in pages]
    with everlong.Memory.open(folder, read_only=True) as memory:
        prefetcher = Prefetcher(memory.core)
        told = Prefetch(0, None, 0)
        prefetcher.read_ahead(pages[2:4], told)
        prefetcher.settle()
        for segment in (folder / "segments").glob("*.kvseg"):  # in place: what the disk says now is damaged
            with segment.open("r+b") as file:
                file.write(bytes(segment.stat().st_size))
        assert [(place.block_id, place.page) for place in told.pages] == [(p.block, p.page) for p in pages[2:4]]
        for at in (2, 3):
            np.testing.assert_array_equal(read(memory, pages[at]), whole[at])
        with pytest.raises(CorruptMemoryError):
            read(memory, pages[0])
        prefetcher.read_ahead(pages[:2], damaged := Prefetch(0, None, 0))
        prefetcher.settle()  # who needs them is told, and nobody else
        assert damaged.pages == ()
        prefetcher.close()


def read(memory: everlong.Memory, page: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    out = np.zeros(memory.core.page_bytes(page.end - page.begin), dtype=np.uint8)
    memory.core.blocks.read_pages([page], out)
    return out


def test_the_trace_says_what_was_read_ahead_and_how_much_of_it_came_back(folder: Path) -> None:
    with open_model(folder, WALKING) as mm:
        mm.searcher.prefetch(byte_tokenizer()(QUESTION)["input_ids"], 0)
        mm.searcher.settle()
        (first,) = [event for event in mm.trace() if event["what"] == "prefetch"]
        assert first["used"] == 0
        assert len(first["prefetched"]) >= 3  # a page and its neighbours
        ahead = {(page["block"], page["page"]) for page in first["prefetched"]}
        answer = mm.generate(QUESTION, max_new_tokens=1, remember=False)
        found = {
            (page.block, page.page)
            for recall in answer.recalled
            for page in mm.memory.core.blocks.pages_of(0, *recall.span)
        }
        again = next(event for event in mm.trace() if event["what"] == "prefetch")
        assert again["used"] == len(ahead & found) > 0


def test_words_that_were_said_lead_on(folder: Path) -> None:
    with open_model(folder, WALKING.changed(answer={"policy": "off"})) as mm:
        answer = mm.generate(QUESTION, max_new_tokens=9, remember=False)
        mm.searcher.settle()
        assert answer.recalled == ()  # alone it brings nothing back
        positions = {event["stream_position"] for event in mm.trace() if event["what"] == "prefetch"}
    assert len(positions) >= 2  # the question's, and of what was said the newest that no later one overtook


def test_where_there_is_nothing_to_read_ahead(tmp_path: Path) -> None:
    with open_model(None, WALKING) as mm:
        mm.read(text())
        mm.generate(QUESTION, max_new_tokens=4)
        assert mm.frame.parts.get("walker").prefetcher is None  # all of it is in RAM
        assert not [event for event in mm.trace() if event["what"] == "prefetch"]
    with pytest.raises(ValueError, match="memory of text alone has none"):
        TINY_MEMORY.with_part(Walker(ahead_every=4)).of_text_alone()
    with pytest.raises(ValueError, match="ahead_every"):
        Walker(ahead_every=-1)
