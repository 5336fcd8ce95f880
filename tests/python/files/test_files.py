"""Files of every kind are read with their places; broken and hostile ones are refused, within limits."""

from __future__ import annotations

import bisect
import datetime
import itertools
import re
from pathlib import Path

import pytest

import everlong
from everlong.files.document import UnreadableFileError
from everlong.files.parsing import Limits, parse
from everlong.memory.origins import origin_tag
from everlong.memory.places import place_in
from support import TINY_MEMORY, byte_tokenizer, tiny_model
from support.made_files import KINDS, hostile, make_good

HOSTILE = hostile()


@pytest.mark.slow
def test_every_kind_is_parsed_with_its_places(tmp_path: Path) -> None:
    for made in make_good(tmp_path):
        parsed = parse(made.path)
        found = [
            (document, ", ".join(filter(None, (document.name, section.place))))
            for document in parsed.documents
            for section in document.sections
            if made.sentence in section.text
        ]
        assert [place for _, place in found] == [made.place], made.path
        document = found[0][0]
        assert made.title in (document.title, ""), made.path
        assert made.title in document.text
        year = None if document.happened is None else datetime.datetime.fromtimestamp(document.happened).year
        assert year == made.year, made.path
        assert "document.write" not in document.text
    assert len(KINDS) == 18


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_broken_or_hostile_file_is_refused_within_limits(name: str, tmp_path: Path) -> None:
    file = tmp_path / "in" / name
    file.parent.mkdir()
    file.write_bytes(HOSTILE[name])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    try:
        parsed = parse(file, Limits(seconds=30))
    except UnreadableFileError as error:
        said = str(error)
    else:
        said = "read"
        assert name in ("external.docx", "cut.pdf"), name  # what is whole of it may be read
        assert "root:" not in "".join(document.text for document in parsed.documents)
    assert said
    assert "Traceback" not in said
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.slow
def test_a_folder_is_read_and_cited_at_the_right_places(tmp_path: Path) -> None:
    made = list(make_good(tmp_path / "good"))
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, TINY_MEMORY) as mm:
        for one in made:
            assert mm.read(one.path).tokens > 0
        for one in made:
            blocks = mm.memory.core.blocks.infos(tag=origin_tag(str(one.path)))
            text = "".join(mm.text(block.id) for block in blocks)
            begins = list(itertools.accumulate((len(mm.text(block.id)) for block in blocks), initial=0))
            for at in (0, len(one.sentence) - 1):  # its letters are tokens
                token = text.index(one.sentence) + at
                block = bisect.bisect_right(begins, token) - 1
                offset = token - begins[block]
                assert place_in(blocks[block].tags, offset, offset + 1) == one.place
            found = mm.recall(one.sentence, where=everlong.Where(origin=one.path))
            assert {recall.origin for recall in found} == {str(one.path)}
            assert any(_lies_in(one.place, recall.place) for recall in found), [recall.place for recall in found]


def _lies_in(place: str, cited: str) -> bool:
    """Whether a citation names a place, or a stretch that it lies in, as "row 16 to row 18"."""
    first, _, last = ([int(number) for number in re.findall(r"\d+", part)] for part in cited.partition(" to "))
    here = [int(number) for number in re.findall(r"\d+", place)]
    return place in cited or (bool(last) and first <= here <= [*first[: len(first) - len(last)], *last])
