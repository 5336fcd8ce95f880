"""Times and tags are checked where they are taken, and a row that cannot be read hides no other."""

from __future__ import annotations

import datetime
import json
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import everlong
import everlong._core as _core
from everlong.memory.where import seconds
from support import open_model, random_text
from support.native import Written, manifest

NOON = datetime.datetime(2024, 5, 3, 12, tzinfo=datetime.UTC)
TEXT = random_text(200)

# Ways to say one moment, and seconds since 1970.
SAID = [
    NOON,
    NOON.astimezone(datetime.timezone(datetime.timedelta(hours=5, minutes=30))),
    NOON.timestamp(),
    int(NOON.timestamp()),
    np.float64(NOON.timestamp()),
    np.int64(NOON.timestamp()),
    Fraction(int(NOON.timestamp())),
    NOON.isoformat(),
    "2024-05-03T12:00Z",
]
NO_TIME = [True, False, np.True_, b"2024", [2024], {}, object, 1j, "yesterday", "7d", ""]
OUT_OF_RANGE = [
    math.nan,
    math.inf,
    -math.inf,
    np.float32("nan"),
    10**400,
    -1e18,
    1_700_000_000_000,
    np.int64(1_700_000_000_000),
    datetime.timedelta.max,
    np.datetime64("NaT"),
    np.timedelta64("NaT"),
    np.datetime64("20000-01-01"),
]


@pytest.mark.parametrize("moment", SAID, ids=repr)
def test_a_moment_is_the_same_however_it_is_said(moment: Any) -> None:
    assert seconds(moment) == NOON.timestamp()
    assert type(seconds(moment)) in (int, float)
    with open_model() as mm:
        mm.read(TEXT, happened=moment)
        assert {block.happened for block in mm.memory.blocks()} == {NOON}
        assert mm.memory.blocks(where=everlong.Where(happened_after=moment)) == mm.memory.blocks()
        assert mm.memory.blocks(where=everlong.Where(happened_before=moment)) == []


def test_times_without_a_zone_are_local_whoever_says_them() -> None:
    local = datetime.datetime(2024, 5, 3, 12)
    assert seconds(np.datetime64("2024-05-03T12:00:00")) == seconds(local) == local.timestamp()
    assert seconds(np.datetime64("2024-05-03")) == seconds(local.date()) == seconds("2024-05-03")


@pytest.mark.parametrize("moment", NO_TIME, ids=repr)
def test_what_is_no_time_is_refused_before_anything_is_read(moment: Any) -> None:
    refused(moment, TypeError)


@pytest.mark.parametrize("moment", OUT_OF_RANGE, ids=repr)
def test_what_no_datetime_holds_is_refused_before_anything_is_read(moment: Any) -> None:
    refused(moment, ValueError)


def refused(moment: Any, error: type[Exception]) -> None:
    """It is named, and so is what is expected; by all that take a time."""
    with open_model() as mm:
        for call in (
            lambda: mm.read(TEXT, happened=moment),
            lambda: mm.memory.blocks(after=moment),
            lambda: mm.memory.forget(before=moment),
            *(lambda field=field: everlong.Where(**{field: moment}) for field in ("after", "before", "happened_after")),
        ):
            with pytest.raises(error, match="expected") as told:
                call()
            assert repr(moment) in str(told.value)
        assert mm.stream_tokens == 0
        assert mm.read(TEXT).tokens == len(TEXT)


def test_milliseconds_are_known_by_their_size() -> None:
    with pytest.raises(ValueError, match="milliseconds: divide it by 1000"):
        seconds(1_700_000_000_000)


@given(st.one_of(st.floats(), st.integers()))
def test_what_is_taken_can_be_said_again(moment: float) -> None:
    """A number is refused, or a block tells it back as a datetime."""
    try:
        taken = seconds(moment)
    except ValueError:
        with pytest.raises((ValueError, OverflowError, OSError)):
            datetime.datetime.fromtimestamp(moment, datetime.UTC)
    else:
        assert taken == moment
        datetime.datetime.fromtimestamp(moment, datetime.UTC)


@pytest.mark.parametrize("tags", ["", " ", "\t\n", ["work", ""], (" ",)], ids=repr)
def test_an_empty_tag_is_refused(tags: Any) -> None:
    with open_model() as mm, pytest.raises(ValueError, match="empty: expected a name"):
        mm.read(TEXT, tags=tags)
    with pytest.raises(ValueError, match=r"the tag .* is empty|an empty list"):
        everlong.Where(tags=tags)


# What an earlier version of everlong, or another program, may have written.
UNREADABLE = ["np.float64(1.7e9)", "True", "nan", "inf", "1700000000000.0", "-1e18", "", "soon"]


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A memory of a block whose time can be read, and of others between such blocks."""
    rng = np.random.default_rng(1)
    with everlong.Memory.open(tmp_path / "m", create=manifest()) as memory:
        for number, told in enumerate(["12.5", *UNREADABLE, "13.5"]):
            block = Written(rng, 0, 10 * number, 10, f"s{number}")
            block.append_to(memory.core, tags=["mine", _core.HAPPENED_TAG + told])
        far = Written(rng, 0, 1000, 10, "far")
        far.append_to(memory.core, created_at=1e300)
        far = Written(rng, 0, 1010, 10, "odd")
        far.append_to(memory.core, source=b"\xff", tags=[b"\xfe\xff"])
    return tmp_path / "m"


def test_an_unreadable_row_hides_no_other(damaged: Path) -> None:
    with everlong.Memory.open(damaged) as memory:
        blocks = {block.source: block for block in memory.blocks()}
        assert len(blocks) == len(UNREADABLE) + 4
        assert blocks["s0"].happened == datetime.datetime.fromtimestamp(12.5, datetime.UTC)
        assert blocks["s0"].tags == ("mine",)
        for number, told in enumerate(UNREADABLE, 1):
            assert blocks[f"s{number}"].happened is None
            assert blocks[f"s{number}"].tags == ("mine", _core.HAPPENED_TAG + told)
        assert blocks["far"].created_at == datetime.datetime.max.replace(tzinfo=datetime.UTC)
        assert blocks["\\xff"].tags == ("\\xfe\\xff",)
        assert len(memory.blocks(tag="mine")) == len(UNREADABLE) + 2
        assert memory.blocks(where=everlong.Where(happened_before="1971-01-01", tags="mine"))
        assert memory.verify().damage == ()
        assert memory.forget(source="s2") == 1
        assert memory.forget(where=everlong.Where(tags="mine")) == len(UNREADABLE) + 1
        assert {block.source for block in memory.blocks()} == {"far", "\\xff"}


def test_inspect_shows_an_unreadable_row_as_it_is(damaged: Path) -> None:
    inspect = [sys.executable, "-m", "everlong", "inspect", str(damaged), "--blocks"]
    shown = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout
    for told in UNREADABLE:
        assert f"cannot be read: {_core.HAPPENED_TAG}{told}" in shown
    listed = json.loads(subprocess.run([*inspect, "--json"], capture_output=True, text=True, check=True).stdout)
    assert len(listed["blocks"]) == len(UNREADABLE) + 4


def test_the_graph_and_searches_go_on_with_an_unreadable_row(damaged: Path) -> None:
    with everlong.Memory.open(damaged) as memory:
        assert memory.graph.nodes() == []
        buckets = memory.core.search.find(token_ids=np.arange(10, dtype=np.int32), kinds=["lexical"])
        assert buckets.groups
