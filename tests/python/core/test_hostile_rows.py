"""Rows of a catalog whose keys no row of everlong's has: a repair takes them and nothing else."""

import contextlib
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import everlong._core as core
from support.small_memory import opened, saved


def require_repaired(folder: Path) -> None:
    """Require that a repair finds damage, leaves none, and keeps both blocks."""
    assert core.Memory.repair(str(folder)).damage
    with opened(folder) as memory:
        assert memory.upkeep.verify(False).damage == []
        assert [block.id for block in memory.blocks.infos()] == [1, 2]


@pytest.mark.parametrize("key", [("kind", "kind + (1 << 32)"), ("kind", "'a text'"), ("kind", "kind + 0.5"),
                                 ("page", "page + (1 << 32)"), ("page", "-1"), ("page", "x'00'")])  # fmt: skip
def test_a_repair_takes_a_row_whose_key_no_record_has(tmp_path: Path, key: tuple[str, str]) -> None:
    """Read into 32 bits or as a number it names a record that is whole, or none."""
    folder = saved(tmp_path / "memory")
    column, value = key
    columns = ["block", "kind", "page", "segment", "record_offset", "record_bytes", "part_bytes", "part_crcs", "crc"]
    copied = ", ".join(value if name == column else name for name in columns)
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as catalog:
        catalog.execute(f"insert into pages select {copied} from pages where block = 1")
        catalog.commit()
    require_repaired(folder)


@pytest.mark.parametrize("kind", ["kind + (1 << 32)", "'a text'", "kind + 0.5", "-kind"])
def test_a_repair_leaves_no_tensors_without_their_rows(tmp_path: Path, kind: str) -> None:
    folder = saved(tmp_path / "memory")
    with opened(folder) as memory:
        memory.blocks.put_tensors(1, {"one": np.ones(3, np.float32), "two": np.ones(2, np.float32)})
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as catalog:
        catalog.execute(f"update tensors set kind = {kind} where name = 'one'")
        catalog.commit()
    require_repaired(folder)


@pytest.mark.parametrize("positions", [(7, 9), (1, 2), (-5, -4), ((1 << 63) - 2, (1 << 63) - 1), ("a", "b")])
def test_tags_are_added_behind_those_of_any_position(tmp_path: Path, positions: tuple[object, object]) -> None:
    folder = saved(tmp_path / "memory")
    with opened(folder) as memory:
        memory.blocks.add_tags(1, ["one", "two"])
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as catalog:
        for tag, position in zip(("two", "one"), reversed(positions), strict=True):
            catalog.execute("update tags set position = ? where tag = ?", (position, tag))
        catalog.commit()
    with opened(folder) as memory:
        memory.blocks.add_tags(1, ["three"])
        assert memory.blocks.info(1).tags == ["one", "two", "three"]
        assert memory.upkeep.verify(False).damage == []


@pytest.mark.parametrize("key", ["CAST(block || x'ff' AS BLOB)", "CAST(block AS BLOB)", "block + 0.5", "block || ' x'"])
def test_tags_whose_block_is_no_number_are_those_of_none(tmp_path: Path, key: str) -> None:
    """A check names the block that lost them, so that a repair of another one leaves nothing to mend."""
    folder = saved(tmp_path / "memory")
    with opened(folder) as memory:
        for block in (1, 2):
            memory.blocks.add_tags(block, ["one"])
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as catalog:
        catalog.execute(f"update tags set block = {key} where block = 2")
        catalog.execute("update blocks set crc = crc + 1 where id = 1")
        catalog.commit()
    assert {1, 2} <= {damage.block for damage in core.Memory.repair(str(folder)).damage}
    with opened(folder) as memory:
        assert memory.upkeep.verify(False).damage == []


@pytest.mark.parametrize("number", [0, -1, -(1 << 63)])
def test_a_repair_takes_a_block_of_no_id(tmp_path: Path, number: int) -> None:
    folder = saved(tmp_path / "memory")
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as catalog:
        catalog.execute("update blocks set id = ? where id = 2", (number,))
        catalog.commit()
    assert core.Memory.repair(str(folder)).damage
    with opened(folder) as memory:
        assert memory.upkeep.verify(False).damage == []
        assert [block.id for block in memory.blocks.infos()] == [1]


@pytest.mark.parametrize("kind", ["kind + (1 << 32)", "'a text'", "kind + 0.5", "-1"])
def test_a_repair_takes_an_edge_of_no_kind_and_no_other(tmp_path: Path, kind: str) -> None:
    folder = saved(tmp_path / "memory", layers=0)
    with opened(folder) as memory:
        memory.graph.grow()
        assert memory.graph.tend(10) == 2
        edges = len(memory.graph.read()[1])
    assert edges > 0
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as catalog:
        catalog.execute(f"insert into edges select source, target, {kind}, weight, time, crc from edges limit 1")
        catalog.commit()
    assert core.Memory.repair(str(folder)).damage
    with opened(folder) as memory:
        assert memory.upkeep.verify(False).damage == []
        assert len(memory.graph.read()[1]) == edges
