"""Sources of one name are told apart, and a text that is there already is not stored twice."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import everlong
from everlong.memory.origins import split_reserved_tags
from everlong.memory.sources import page_of_sources, sources
from support import TINY_MEMORY, byte_tokenizer, random_text, tiny_model

ONE, OTHER = random_text(700, seed=3), random_text(500, seed=4)


def open_model(memory: Path | None = None) -> everlong.MemoryModel:
    return everlong.MemoryModel(tiny_model(), byte_tokenizer(), memory, TINY_MEMORY)


@pytest.fixture
def readmes(tmp_path: Path) -> tuple[Path, Path]:
    files = tmp_path / "a" / "README.md", tmp_path / "b" / "README.md"
    for file, text in zip(files, (ONE, OTHER), strict=True):
        file.parent.mkdir()
        file.write_text(text)
    return files


def text_of(mm: everlong.MemoryModel, **where: Any) -> str:
    return "".join(mm.text(block.id) for block in mm.memory.blocks(where=everlong.Where(**where)))


def test_two_files_of_one_name_are_two_sources(tmp_path: Path, readmes: tuple[Path, Path]) -> None:
    with open_model(tmp_path / "memory") as mm:
        for file in readmes:
            mm.read(file)
    with open_model(tmp_path / "memory") as mm:
        listed = sources(mm.memory)
        assert [(one.name, one.origin, one.tokens) for one in listed] == [
            ("README", str(readmes[0]), 700),
            ("README", str(readmes[1]), 500),
        ]
        assert [one.shown for one in listed] == [f"README ({file})" for file in readmes]
        for file, text in zip(readmes, (ONE, OTHER), strict=True):
            assert text_of(mm, origin=file) == text_of(mm, source="README", origin=str(file)) == text
            found = mm.recall(text[200:240], where=everlong.Where(origin=file))
            assert {recall.origin for recall in found} == {str(file)}
        assert all(block.tags == () for block in mm.memory.blocks())
        assert mm.memory.forget(where=everlong.Where(origin=readmes[0])) > 0
        assert text_of(mm, source="README") == OTHER
        assert mm.recall(ONE[200:240], where=everlong.Where(origin=readmes[0])) == ()


def test_the_pages_of_the_sources_are_the_sources(tmp_path: Path) -> None:
    with open_model(tmp_path / "memory") as mm:
        for name in ("b", "a", "d", "c", "b", "e"):  # b goes on behind the others
            mm.read(random_text(150, seed=len(sources(mm.memory))), source=name, again=True)
        listed = sources(mm.memory)
        assert [one.name for one in listed] == ["b", "a", "d", "c", "e"]
        for limit in (1, 2, 5, 9):
            found, place = page_of_sources(mm.memory, limit=limit)
            while place is not None:
                page, place = page_of_sources(mm.memory, place, limit)
                assert 0 < len(page) <= limit
                found += page
            assert found == listed
        first, place = page_of_sources(mm.memory, limit=2)
        mm.memory.forget(source="a")
        assert place is not None
        assert [one.name for one in first + page_of_sources(mm.memory, place)[0]] == ["b", "a", "d", "c", "e"]


def test_an_origin_may_be_named(tmp_path: Path) -> None:
    with open_model() as mm:
        mm.read(ONE, source="page", origin="https://one.example/")
        mm.read(io.StringIO(OTHER), source="page", origin="https://other.example/", tags="web")
        assert text_of(mm, origin="https://other.example/", tags="web") == OTHER
        assert {block.tags for block in mm.memory.blocks("page")} == {(), ("web",)}


def test_what_is_there_already_is_said_and_not_stored_twice(tmp_path: Path) -> None:
    """As where a cell of a notebook is run again, in this process or another."""
    file = tmp_path / "notes.txt"
    file.write_text(ONE)
    with open_model(tmp_path / "memory") as mm:
        first = mm.read(file)
        assert (first.tokens, first.already) == (700, 0)
        again = mm.read(file)
        assert (again.tokens, again.blocks, again.already, again.resumed_tokens) == (0, 0, 700, 0)
        mm.generate("and", max_new_tokens=2)
    with open_model(tmp_path / "memory") as mm:
        assert mm.read(file).already == 700
        assert text_of(mm, source="notes") == ONE
        anew = mm.read(file, again=True)
        assert (anew.tokens, anew.already) == (700, 0)
        assert text_of(mm, source="notes") == ONE + ONE
        assert mm.read(file).already == 700
        mm.memory.forget(source="notes")
        assert (mm.read(file).tokens, text_of(mm, source="notes")) == (700, ONE)


def test_what_a_stream_begins_with_is_no_part_of_its_first_text() -> None:
    """Where the tokenizer puts a token before every text."""
    with everlong.MemoryModel(tiny_model(vocab_size=258), byte_tokenizer(begins=True), None, TINY_MEMORY) as mm:
        assert mm.read(ONE, source="one").tokens == 700
        assert (mm.read(ONE, source="one").tokens, mm.read(OTHER, source="two").already) == (0, 0)
        assert mm.read(OTHER, source="two").already == len(OTHER)


@pytest.mark.parametrize(
    "changed",
    [{"source": "other"}, {"origin": "elsewhere"}, {"tags": "new"}, {"text": ONE + "!"}, {"text": ONE[:-1]}],
)
def test_another_text_or_other_names_are_read(changed: dict[str, Any]) -> None:
    with open_model() as mm:
        how = {"text": ONE, "source": "one"}
        mm.read(**how)
        report = mm.read(**{**how, **changed})
        assert (report.tokens, report.already) == (len(changed.get("text", ONE)), 0)
        assert mm.read(**how).already == 700


def test_pieces_in_a_list_are_known_and_those_that_are_made_are_read() -> None:
    pieces = [ONE[:300], ONE[300:]]
    with open_model() as mm:
        mm.read(ONE, source="one")
        assert mm.read(pieces, source="one").already == 700
        assert mm.read(iter(pieces), source="one").tokens == 700


def test_a_reading_that_was_cut_short_is_gone_on_with_not_there_already() -> None:
    with open_model() as mm:

        def stop(done: int, _: int | None) -> None:
            if done > 400:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            mm.read(ONE, source="one", progress=stop)
        report = mm.read(ONE, source="one")
        assert report.resumed_tokens > 0
        assert (report.already, report.tokens) == (0, 700 - report.resumed_tokens)
        assert mm.read(ONE, source="one").already == 700
        assert text_of(mm, source="one") == ONE


def test_a_text_of_which_a_part_was_forgotten_is_not_all_there() -> None:
    with open_model() as mm:
        mm.read(ONE, source="one")
        mm.memory.forget([mm.memory.blocks("one")[0].id])
        report = mm.read(ONE, source="one")
        assert (report.tokens, report.already) == (700, 0)


def test_tags_of_everlongs_own_are_no_users() -> None:
    assert split_reserved_tags(["a", "everlong:origin=/b", "everlong:text=c"]) == (("a",), "/b")
    with open_model() as mm:
        with pytest.raises(ValueError, match="everlong's own"):
            mm.read("a", tags=["everlong:origin=b"])
        assert mm.stream_tokens == 0
    unfit: list[Any] = ["", 3]
    for origin in unfit:
        with pytest.raises((ValueError, TypeError), match="origin"):
            everlong.Where(origin=origin)
