"""Whoever reads blocks for a question sees all that a plain predicate over the blocks lets pass, and nothing else."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import everlong
from everlong import Where
from everlong.memory import Block, Memory
from everlong.memory.origins import origin_tag
from everlong.retrieval.notes import take_notes
from everlong.retrieval.searcher import Searcher
from everlong.serve.inspector import MemoryInspector
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.examples import examples
from support.memories import answering_of

CONFIG = SMALL.changed(search={"index": ("lexical",), "groups": 8}, answer={"recall_mode": "kv"})
WORD = "zygote"  # in every block, so that a search for it finds whatever passes
YEAR = 365 * 86400.0
TEXTS: tuple[dict[str, Any], ...] = (
    {"source": "a", "tags": ["x"], "origin": "here", "happened": 10 * YEAR},
    {"source": "b", "tags": ["x", "y"], "origin": "there"},
    {"source": "a", "tags": ["y"], "happened": 20 * YEAR},
    {"source": "c", "origin": "here"},
    {"source": "b", "tags": ["x"], "origin": "moved", "happened": 30 * YEAR},
    {"source": "a", "tags": [], "origin": "there", "happened": 20 * YEAR},
    {"source": "last"},
)


def say(seed: int) -> str:
    return " ".join(f"{random_text(60, seed=10 * seed + part)} {WORD}." for part in range(4))


@functools.cache
def library() -> everlong.MemoryModel:
    """Texts under many names and at many times, and a turn between them. It stays open for all tests."""
    mm = everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, CONFIG)
    for number, names in enumerate(TEXTS):
        mm.read(say(number), **names)
        if number == 2:
            for seed, origin in ((98, "prompt"), (99, "generated")):
                mm.frame.extend(mm.encode(f"{random_text(80, seed=seed)} {WORD}."), origin)
            mm.frame.end_of_text()
    for block in mm.memory.blocks("b"):
        if block.origin == "moved":
            mm.memory.core.blocks.add_tags(block.id, [origin_tag("here")])
    return mm


def seconds(moment: Any) -> float:
    return moment.timestamp() if isinstance(moment, datetime.datetime) else float(moment)


def passes(block: Block, where: Where, roles: tuple[str, ...]) -> bool:
    """Say it in plain words, field by field."""

    def several(given: Any) -> tuple[str, ...]:
        return (given,) if isinstance(given, str) else tuple(given or ())

    happened = seconds(block.happened or block.created_at)
    return (
        (where.source == () or block.source in several(where.source))
        and all(tag in block.tags for tag in several(where.tags))
        and (where.after is None or seconds(block.created_at) >= seconds(where.after))
        and (where.before is None or seconds(block.created_at) < seconds(where.before))
        and block.role in (several(where.role) or roles)
        and (where.origin is None or block.origin == where.origin)
        and (where.happened_after is None or happened >= seconds(where.happened_after))
        and (where.happened_before is None or happened < seconds(where.happened_before))
    )


def moments() -> st.SearchStrategy[Any]:
    return st.deferred(
        lambda: st.sampled_from(
            sorted({block.created_at for block in library().memory.blocks()})
            + [datetime.datetime.fromtimestamp(years * YEAR, datetime.UTC) for years in (5, 10, 15, 20, 30, 100)]
        )
    )


NAMES = st.sampled_from(["a", "b", "c", "last", "nobody", ""])
# A field of Where that has none here fails the first test.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "source": NAMES | st.lists(NAMES, min_size=1, max_size=3),
    "tags": st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=2, unique=True),
    "after": moments(),
    "before": moments(),
    "role": st.lists(st.sampled_from(["read", "asked", "said"]), min_size=1, unique=True),
    "origin": st.sampled_from(["here", "there", "moved", "nowhere"]),
    "happened_after": moments(),
    "happened_before": moments(),
    "said_as_read": st.booleans(),
}


@st.composite
def wheres(draw: Callable[..., Any]) -> Where:
    chosen = draw(st.sets(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=3))
    return Where(**{name: draw(FIELDS[name]) for name in sorted(chosen)})


def over(spans: Any) -> set[int]:
    """Return the blocks that have tokens of these spans."""
    runs = list(spans)
    return {
        block.id
        for block in library().memory.blocks()
        for begin, end in runs
        if block.span[0] < end and begin < block.span[1]
    }


def prompt_of(mm: everlong.MemoryModel) -> Any:
    return answering_of(mm).prompt(WORD, False, None)


def searched(mm: everlong.MemoryModel, where: Where) -> set[int]:
    tapped = mm.searcher.find_sentences(prompt_of(mm), where)
    return over((offer.begin, offer.end) for offer in tapped.offers)


def of_pages(pages: Any) -> set[int]:
    return {page.block for page in pages}


def quoted(mm: everlong.MemoryModel, where: Where) -> set[int]:
    found = mm.searcher.find_sentences(prompt_of(mm), where)
    return over((one.begin, one.end) for one in found.sentences)


def put_before(mm: everlong.MemoryModel, where: Where) -> set[int]:
    """Return what several quotes are of, short texts as wholes."""
    config = mm.config
    mm.config = config.changed(answer={"quotes": 4})
    try:
        found = mm.searcher.find_sentences(prompt_of(mm), where)
        return over((one.begin, one.end) for one in mm.searcher.quotes(found, where))
    finally:
        mm.config = config


def noted(mm: everlong.MemoryModel, where: Where) -> set[int]:
    notes = take_notes(mm.memory.core, mm.tokenizer, WORD, where, mm.frame.os.stream, 1 << 20)
    return over((note.begin, note.end) for note in notes.lines)


def looked(mm: everlong.MemoryModel, where: Where) -> set[int]:
    found = MemoryInspector(mm.tokenizer).search(mm.memory, WORD, 100, where)
    return over(one["span"] for one in found)


def shown(mm: everlong.MemoryModel, where: Where) -> set[int]:
    """Return what a question attends to of the blocks that stand in the frame."""
    with mm.frame.branch():
        mm.frame.clear_recalled()
        mm.frame.narrow(where)
        there = mm.frame.stream.visible
        begin, end = mm.frame.os.rolling
        return over([(begin, end)] if there is None else there.runs(begin, min(end, mm.frame.os.archived_until)))


SEARCHED, ALL = ("read", "said"), ("read", "asked", "said")
# By the method that takes a where: what it reads, which roles it looks at where none is named, and whether it returns
# all that passes, and not just some of it.
READERS: dict[str, tuple[Callable[[everlong.MemoryModel, Where], set[int]], tuple[str, ...], bool]] = {
    "Memory.blocks": (lambda mm, where: {block.id for block in mm.memory.blocks(where=where)}, ALL, True),
    "MemoryModel.find": (lambda mm, where: over(one.span for one in mm.find(WORD, k=100, where=where)), SEARCHED, True),
    "MemoryModel.recall": (lambda mm, where: over(one.span for one in mm.recall(WORD, where=where)), SEARCHED, False),
    "MemoryModel.survey": (noted, SEARCHED, True),
    "Searcher.find": (searched, SEARCHED, False),
    "Searcher.find_sentences": (quoted, SEARCHED, False),
    "Searcher.quotes": (put_before, SEARCHED, False),
    "Searcher.anywhere": (
        lambda mm, where: over((one.begin, one.end) for one in mm.searcher.anywhere(prompt_of(mm), 100, where).offers),
        SEARCHED,
        True,
    ),
    "Searcher.recent_pages": (lambda mm, where: of_pages(mm.searcher.recent_pages(1000, where)), SEARCHED, False),
    "Searcher.pages_of": (
        lambda mm, where: of_pages(mm.searcher.pages_of((0, mm.stream_tokens), where)),
        SEARCHED,
        True,
    ),
    "Searcher.passing": (
        lambda mm, where: of_pages(mm.searcher.passing(mm.memory.core.blocks.pages(), where)),
        ALL,
        True,
    ),
    "Frame.narrow": (shown, ALL, False),
    "MemoryInspector.search": (looked, SEARCHED, True),
}
# They read through those above, or (`prefetch`) tell parts that search, or forget.
THROUGH = {
    "Memory.forget",
    "MemoryModel.answer_many",
    "MemoryModel.decode",
    "MemoryModel.generate",
    "MemoryModel.in_steps",
    "MemoryModel.stream",
    "Searcher.prefetch",
    "Searcher.anything_outside",
    "Searcher.find_in_steps",
}


def takers() -> Iterator[str]:
    for owner in (everlong.MemoryModel, Memory, Searcher, MemoryInspector, type(library().frame)):
        for name, method in inspect.getmembers(owner, callable):
            if not name.startswith("_") and "where" in inspect.signature(method).parameters:
                yield f"{'Frame' if owner is type(library().frame) else owner.__name__}.{name}"


def test_every_field_and_every_reader_is_asked() -> None:
    assert FIELDS.keys() == {field.name for field in dataclasses.fields(Where)}
    assert set(takers()) - THROUGH == set(READERS)


@pytest.mark.parametrize("reader", READERS)
@given(wheres())
@examples(25)
def test_a_reader_sees_what_passes(reader: str, where: Where) -> None:
    mm = library()
    read, roles, whole = READERS[reader]
    expected = {block.id for block in mm.memory.blocks() if passes(block, where, roles)}
    found = read(mm, where)
    assert found <= expected, f"{where}: {found - expected} of {expected}"
    if whole:
        assert found == expected, f"{where}: without {expected - found}"


def test_each_field_keeps_something_out_and_lets_something_pass() -> None:
    """So that the test above compares sets that differ."""
    blocks, seen = library().memory.blocks(), set()
    middle = blocks[len(blocks) // 2].created_at
    year = datetime.datetime.fromtimestamp(15 * YEAR, datetime.UTC)
    chosen = {"source": "a", "tags": "x", "after": middle, "before": middle, "role": "said", "origin": "here"}
    for name, value in {**chosen, "happened_after": year, "happened_before": year}.items():
        passing = sum(passes(block, Where(**{name: value}), ALL) for block in blocks)
        assert 0 < passing < len(blocks), name
        seen.add(name)
    assert seen | {"said_as_read"} == set(FIELDS)


def test_a_survey_tells_of_nothing_else() -> None:
    where = Where(happened_before=datetime.datetime.fromtimestamp(15 * YEAR, datetime.UTC))
    answer = library().survey(f"What of {WORD}?", 2, where=where, note_tokens=300)
    expected = {block.id for block in library().memory.blocks() if passes(block, where, SEARCHED)}
    assert answer.recalled
    assert over(one.span for one in answer.recalled) <= expected
