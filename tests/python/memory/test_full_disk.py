"""A disk that is full, as a small file system of its own: what frees room works there.

That it may be killed at any moment is shown by tests/cpp/os_full_disk_crash_test.cc.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import everlong
from support import SMALL, byte_tokenizer, open_model, random_text, tiny_text_model
from support.native import fill, manifest
from support.text_alone import TEXT_ALONE_MEMORY

BOOK = random_text(20_000)


@contextlib.contextmanager
def disk_of(folder: Path, size: str) -> Iterator[None]:
    """A file system of that size in the folder."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here, as by root: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.fixture(params=["4m", "6m"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with disk_of(tmp_path / "disk", request.param):
        yield tmp_path / "disk"


def fill_up(disk: Path) -> None:
    """Leave no byte free."""
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))


def free(disk: Path) -> int:
    said = os.statvfs(disk)
    return said.f_bavail * said.f_frsize


def read_until_full(mm: everlong.MemoryModel, source: str) -> str:
    with pytest.raises(everlong.MemoryIOError) as told:
        mm.read(BOOK, source=source)
    return str(told.value)


def text_of(mm: everlong.MemoryModel, source: str) -> str:
    return "".join(mm.text(block.id) for block in mm.memory.blocks(source))


@pytest.mark.parametrize("graph", [False, True])
def test_a_memory_makes_room_for_itself(disk: Path, graph: bool, caplog: pytest.LogCaptureFixture) -> None:
    with open_model(disk / "m", SMALL.changed(archive={"graph": graph})) as mm:
        mm.read(BOOK[:300], source="small")
        told = read_until_full(mm, "large")
        kept = text_of(mm, "large")
        assert re.search(rf"The memory keeps {len(kept):,} tokens of this text", told)
        assert "forget" in told
        assert BOOK.startswith(kept)
        fill_up(disk)
        with caplog.at_level(logging.WARNING, "everlong"):
            assert mm.memory.forget(source="large") > 0
        assert re.search(r"the disk was full: forgetting gave back [\d,]+ bytes", caplog.text)
        assert free(disk) > 0
        assert mm.memory.compact() >= 0
        assert (mm.memory.blocks("large"), text_of(mm, "small")) == ([], BOOK[:300])
        assert mm.memory.stats().dead_bytes == 0
        assert mm.read(BOOK[300:600], source="again").tokens == 300
        assert text_of(mm, "again") == BOOK[300:600]
        assert mm.memory.verify().damage == ()
    with open_model(disk / "m") as mm:
        assert {block.source for block in mm.memory.blocks()} == {"small", "again"}
        assert mm.memory.verify().damage == ()


def test_compact_alone_makes_room_for_what_was_forgotten_before(disk: Path) -> None:
    with open_model(disk / "m") as mm:
        mm.read(BOOK[:1000], source="old")
        mm.memory.forget(source="old")
        mm.read(BOOK[:300], source="small")
        fill_up(disk)
        assert free(disk) == 0
        assert mm.memory.compact() > 1000
        assert free(disk) > 0
        assert text_of(mm, "small") == BOOK[:300]
        assert mm.memory.verify().damage == ()


def test_a_memory_of_text_alone_forgets_on_a_full_disk(disk: Path) -> None:
    """It has no payload that would make room: the reserve and the log must do."""
    with everlong.MemoryModel(tiny_text_model("gpt2"), byte_tokenizer(), disk / "m", TEXT_ALONE_MEMORY) as mm:
        for number in range(8):
            mm.read(BOOK[1000 * number : 1000 * (number + 1)], source=f"s{number}")
        fill_up(disk)
        for number in range(8):
            assert mm.memory.forget(source=f"s{number}") > 0
        (disk / "ballast").unlink()
        assert mm.memory.compact() >= 0
        assert mm.memory.blocks() == []
        assert mm.memory.verify().damage == ()


def test_a_memory_is_opened_on_a_full_disk(disk: Path) -> None:
    with open_model(disk / "m") as mm:
        mm.read(BOOK[:1500], source="book")
    fill_up(disk)
    with everlong.Memory.open(disk / "m") as memory:
        assert memory.forget(source="book") > 0
        memory.compact()
        assert memory.blocks() == []
    assert (disk / "m" / "reserve").exists()


def test_a_reserve_is_taken_once_there_is_room(disk: Path) -> None:
    with open_model(disk / "m") as mm:
        mm.read(BOOK[:1500], source="book")
    (disk / "m" / "reserve").unlink()
    fill_up(disk)
    os.truncate(disk / "ballast", (disk / "ballast").stat().st_size - 128 * 1024)  # too little for one
    with everlong.Memory.open(disk / "m") as memory:
        assert not (disk / "m" / "reserve").exists()
        assert memory.forget(source="book") > 0
        memory.compact()
        assert (disk / "m" / "reserve").stat().st_blocks * 512 >= 256 * 1024
        assert memory.blocks() == []


def test_what_a_fork_shares_is_left_to_it(disk: Path) -> None:
    with everlong.Memory.open(disk / "m", create=manifest()) as memory:
        fill(memory.core, 40)
        memory.flush()
        with memory.fork(disk / "fork") as fork:
            fill_up(disk)
            assert memory.forget([1, 2, 3]) == 3
            assert len(fork.blocks()) == 40
            assert fork.verify().damage == ()
            assert memory.verify().damage == ()
        (disk / "ballast").unlink()
        memory.compact()
        assert [block.id for block in memory.blocks()] == list(range(4, 41))
        assert memory.verify().damage == ()


def test_a_reserve_is_kept_beside_the_memory_and_counts_for_nothing(tmp_path: Path) -> None:
    with everlong.Memory.open(tmp_path / "m", create=manifest()) as memory:
        fill(memory.core)
        assert (tmp_path / "m" / "reserve").stat().st_blocks * 512 >= 256 * 1024
        (tmp_path / "m" / "reserve").write_bytes(b"anything")
        assert memory.verify().damage == ()
        memory.fork(tmp_path / "fork").close()
        memory.compact()
    for name in ("m", "fork"):
        assert (tmp_path / name / "reserve").stat().st_blocks * 512 >= 256 * 1024
        (tmp_path / name / "reserve").unlink()
        with everlong.Memory.open(tmp_path / name, read_only=True) as memory:
            assert len(memory.blocks()) == 8
        assert not (tmp_path / name / "reserve").exists()


def test_what_another_keeps_under_that_name_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "reserve").write_text("mine")
    with pytest.raises(everlong.MemoryExistsError, match="reserve"):
        everlong.Memory.open(tmp_path / "m", create=manifest())
    assert (tmp_path / "m" / "reserve").read_text() == "mine"
    (tmp_path / "mine").write_text("mine")
    everlong.Memory.open(tmp_path / "other", create=manifest()).close()
    (tmp_path / "other" / "reserve").unlink()
    (tmp_path / "other" / "reserve").symlink_to(tmp_path / "mine")
    with everlong.Memory.open(tmp_path / "other") as memory:
        memory.compact()
    assert (tmp_path / "mine").read_text() == "mine"
