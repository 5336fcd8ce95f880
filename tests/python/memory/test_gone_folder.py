"""A memory whose folder is removed or replaced while it is open: nothing is written, and that is said once."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import everlong
from support import open_model, random_text
from support.native import fill, manifest

TEXT = random_text(900)


def removed(folder: Path) -> None:
    shutil.rmtree(folder)


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("away"))


def replaced(folder: Path) -> None:
    moved(folder)
    with open_model(folder) as other:
        other.read(TEXT[::-1], source="other")


def emptied_and_filled(folder: Path) -> None:
    """The folder itself stays."""
    for name in folder.iterdir():
        shutil.rmtree(name) if name.is_dir() else name.unlink()
    with open_model(folder) as other:
        other.read(TEXT[::-1], source="other")


def replaced_by_a_link(folder: Path) -> None:
    moved(folder)
    folder.symlink_to(folder.with_name("away"))
    folder.unlink()
    folder.write_text("a file")


GONE = [removed, moved, replaced, emptied_and_filled, replaced_by_a_link]


def state_of(root: Path) -> dict[str, tuple[int, int, bytes | None]]:
    """Every file below a folder, with its inode, time of writing and content."""
    found = {}
    for path in sorted(root.rglob("*")):
        said = path.lstat()
        # SQLite's shared memory is nobody's content.
        content = path.read_bytes() if path.is_file() and path.suffix != ".sqlite-shm" else None
        found[str(path.relative_to(root))] = (said.st_ino, 0 if path.is_dir() else said.st_mtime_ns, content)
    return found


def of_others(root: Path) -> dict[str, tuple[int, int, bytes | None]]:
    return {name: said for name, said in state_of(root).items() if not name.startswith("away")}


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("left", ["all archived", "an answer under way"])
def test_close_says_that_the_folder_is_gone_and_writes_nothing(
    gone: Callable[[Path], None], left: str, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    mm = open_model(folder)
    mm.read(TEXT, source="first")
    pieces = mm.stream("what is it?", 9)
    if left == "an answer under way":
        next(pieces)
    gone(folder)
    before = of_others(tmp_path)
    with pytest.warns(everlong.MemoryGoneWarning, match="was removed or replaced") as told:
        mm.close()
    assert len(told) == 1
    assert str(folder) in str(told[0].message)
    assert of_others(tmp_path) == before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mm.close()
    if gone is not replaced_by_a_link:
        with open_model(folder) as other:
            assert {block.source for block in other.memory.blocks()} <= {"other"}
            assert other.memory.verify().damage == ()
    if (folder.with_name("away")).exists():  # what was archived is where the folder went
        with everlong.Memory.open(folder.with_name("away")) as memory:
            assert sum(block.span[1] - block.span[0] for block in memory.blocks("first")) == len(TEXT)
            assert memory.verify().damage == ()


@pytest.mark.parametrize("gone", [removed, replaced])
def test_what_must_be_written_is_refused(gone: Callable[[Path], None], tmp_path: Path) -> None:
    mm = open_model(tmp_path / "m")
    mm.read(TEXT, source="first")
    gone(tmp_path / "m")
    before = of_others(tmp_path)
    for call in (lambda: mm.read("more"), lambda: mm.memory.forget(source="first"), mm.memory.compact):
        with pytest.raises(everlong.MemoryIOError, match="was removed while it was open"):
            call()
    assert of_others(tmp_path) == before
    with pytest.warns(everlong.MemoryGoneWarning):
        mm.close()


def test_a_memory_without_a_model_says_it_too(tmp_path: Path) -> None:
    memory = everlong.Memory.open(tmp_path / "m", create=manifest())
    fill(memory.core)
    memory.flush()
    assert not memory.is_gone
    removed(tmp_path / "m")
    assert memory.is_gone
    with pytest.warns(everlong.MemoryGoneWarning):
        memory.close()
    assert os.listdir(tmp_path) == []


def test_a_reader_has_nothing_to_write(tmp_path: Path) -> None:
    open_model(tmp_path / "m").close()
    memory = everlong.Memory.open(tmp_path / "m", read_only=True)
    removed(tmp_path / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.close()
