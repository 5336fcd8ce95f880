"""A filter is a Where wherever one is taken, with a memory and without a model."""

from __future__ import annotations

import datetime

import pytest

import everlong
from everlong import Where
from support import SMALL, byte_tokenizer, random_text, tiny_model


@pytest.fixture
def mm():
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as opened:
        for number, (source, tags) in enumerate([("a", ["x"]), ("b", ["x", "y"]), ("c", []), ("a", ["y"])]):
            opened.read(random_text(200, seed=number), source=source, tags=tags)
        yield opened


WHERES = {
    "source": Where(source="a"),
    "sources": Where(source=["a", "c"]),
    "tag": Where(tags="x"),
    "all tags": Where(tags=["x", "y"]),
    "both": Where(source="a", tags="y"),
    "new": Where(after=datetime.timedelta(days=1)),
    "old": Where(before=datetime.timedelta(days=1)),
    "none": Where(source="nobody"),
}


@pytest.mark.parametrize("name", WHERES)
def test_blocks_of_a_where_are_those_that_a_question_may_be_answered_from(mm, name: str) -> None:
    where = WHERES[name]
    found = {block.id for block in mm.memory.blocks(where=where)}
    core = mm.memory.core
    assert found == {page.block for page in core.search.recent_pages(0, mm.stream_tokens, 1000, **where.core())}
    before = {block.id for block in mm.memory.blocks()}
    assert mm.memory.forget(where=where) == len(found)
    assert {block.id for block in mm.memory.blocks()} == before - found


def test_where_stands_alone_and_is_never_everything_by_mistake(mm) -> None:
    blocks = len(mm.memory.blocks())
    with pytest.raises(ValueError, match="name either where"):
        mm.memory.blocks("a", where=Where(tags="x"))
    for named in ({"source": "a"}, {"block_ids": [1]}, {"before": 0.0}):
        with pytest.raises(ValueError, match="name either block_ids"):
            mm.memory.forget(**named, where=Where(tags="x"))
    for everything in (Where(), Where(said_as_read=True)):
        with pytest.raises(ValueError, match="leaves nothing out"):
            mm.memory.forget(where=everything)
    for call in (mm.memory.blocks, mm.memory.forget):
        with pytest.raises(TypeError, match=r"everlong\.Where"):
            call(where="a")
    assert len(mm.memory.blocks()) == blocks
    assert mm.memory.blocks(where=Where()) == mm.memory.blocks()
