"""Memory as its users meet it without a model: what is damaged, newer, or written to a full disk."""

from __future__ import annotations

import json
import logging
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import everlong
from support import open_model, random_text
from support.processes import PROCESSES

TEXTS = {"a": random_text(200, seed=1), "b": random_text(200, seed=2), "c": random_text(200, seed=3)}
TAGS = {"a": ("work", "2024"), "b": ("home",), "c": ("work",)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of three texts, two blocks each."""
    with open_model(tmp_path / "m") as mm:
        for source, text in TEXTS.items():
            mm.read(text, source=source, tags=TAGS[source])
    return tmp_path / "m"


def test_blocks_of_a_tag(folder: Path) -> None:
    with everlong.Memory.open(folder) as memory:
        named = {tag: [block.source for block in memory.blocks(tag=tag)] for tag in ("work", "2024", "home", "wor", "")}
        assert named == {"work": ["a", "a", "c", "c"], "2024": ["a", "a"], "home": ["b", "b"], "wor": [], "": []}
        assert {block.source for block in memory.blocks("c", tag="work")} == {"c"}
        assert memory.blocks("b", tag="work") == []
        (later, _) = memory.blocks("c")
        assert {block.source for block in memory.blocks(tag="work", before=later.created_at)} == {"a"}
        memory.forget(source="a")
        assert [block.source for block in memory.blocks(tag="work")] == ["c", "c"]
        assert memory.blocks(tag="2024") == []


@pytest.mark.parametrize("read_only", [False, True])
def test_the_pages_of_a_list_are_the_list(folder: Path, read_only: bool) -> None:
    with everlong.Memory.open(folder) as memory:
        memory.forget([memory.blocks("b")[0].id])
    with everlong.Memory.open(folder, read_only=read_only) as memory:
        for chosen in ({}, {"source": "c"}, {"tag": "work"}, {"where": everlong.Where(source=("a", "c"), role="read")}):
            blocks = memory.blocks(**chosen)
            assert len(blocks) == {"source": 2}.get(next(iter(chosen), ""), 5 if not chosen else 4)
            for limit in (1, 2, 3, 100):
                paged, page = [], memory.blocks(**chosen, limit=limit)
                while page:
                    assert len(page) <= limit
                    paged += page
                    page = memory.blocks(**chosen, limit=limit, behind=page[-1].id)
                assert paged == blocks
        ids = [block.id for block in memory.blocks("a")]
        found = everlong.Where(tags="work").blocks(memory.core, among=[*ids, *ids, 10**6, memory.blocks("b")[0].id])
        assert [info.id for info in found] == ids
        with pytest.raises(ValueError, match="most"):
            memory.blocks(limit=0)


# A process that is forked while others of its threads run may do little: no model is in this one.
_FORKS = """
import os, sys
import numpy as np
import everlong

memory = everlong.Memory.open(sys.argv[1], host_bytes=0)
pages = memory.core.blocks.pages()
out = np.empty(sum(memory.core.page_bytes(page.end - page.begin) for page in pages), dtype=np.uint8)
memory.core.blocks.read_pages(pages, out)  # by threads, which wait for more
child = os.fork()
if child == 0:
    try:
        memory.blocks()
    except everlong.ClosedError as error:
        assert "fork" in str(error)
        memory.close()
        del memory
        os._exit(0)
    os._exit(1)
_, status = os.waitpid(child, 0)
assert status == 0, status
end, held = os.pipe()
if os.fork() == 0:
    os.close(held)
    os.read(end, 1)  # as long as its parent lives
    os._exit(0)
memory.close()
everlong.Memory.open(sys.argv[1]).close()  # that a fork lives locks nobody out
"""


@pytest.mark.slow
def test_a_fork_of_the_process_leaves_the_memory_alone(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, str(folder)], stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_memory_that_does_not_open_any_more_is_repaired(folder: Path) -> None:
    """Of the third block a token id has changed on disk: what a search needs to open is not whole."""
    catalog = sqlite3.connect(folder / "catalog.sqlite")
    (ids,) = catalog.execute("SELECT token_ids FROM blocks WHERE id = 3").fetchone()
    catalog.execute("UPDATE blocks SET token_ids = ? WHERE id = 3", (bytes([ids[0] ^ 1]) + ids[1:],))
    catalog.commit()
    catalog.close()
    # Whose words are saved are not read; but they are when they are asked for.
    with everlong.Memory.open(folder, read_only=True) as memory:
        assert [damage.block for damage in memory.verify().damage] == [3]
        third = next(block for block in memory.core.blocks.infos() if block.id == 3)
        with pytest.raises(everlong.CorruptMemoryError, match="block 3"):
            memory.core.blocks.token_ids(third.stream, third.begin, third.end)
    shutil.rmtree(folder / "index")
    with pytest.raises(everlong.CorruptMemoryError, match="block 3"):
        everlong.Memory.open(folder)
    with pytest.raises(everlong.CorruptMemoryError, match="block 3"):
        open_model(folder)
    report = everlong.Memory.repair(folder)
    assert report.dropped == (3,)
    assert [damage.block for damage in report.damage] == [3]
    assert "token ids of block 3" in report.damage[0].what
    with open_model(folder) as mm:
        texts = [mm.text(block.id) for block in mm.memory.blocks()]
        assert texts == [TEXTS["a"][:128], TEXTS["a"][128:], TEXTS["b"][128:], TEXTS["c"][:128], TEXTS["c"][128:]]
        assert mm.memory.verify().damage == ()
        mm.read(TEXTS["b"], source="again")
        assert TEXTS["b"][40:70] in mm.recall(TEXTS["b"][40:70], where=everlong.Where(source="again"))[0].text
    assert everlong.Memory.repair(folder).damage == ()


def test_a_block_s_text_is_what_was_read(folder: Path) -> None:
    with open_model(folder) as mm:
        texts = {block.id: mm.text(block.id) for block in mm.memory.blocks()}
        assert "".join(texts.values()) == "".join(TEXTS.values())
        (recall, *_) = mm.recall(TEXTS["b"][40:70])
        assert recall.text.startswith(texts[recall.block_id][:64])
        assert recall.passage in "".join(texts.values())
        first, *_ = mm.memory.blocks("b")
        mm.memory.forget(source="b")
        for gone in (first.id, max(texts) + 1, 0, -1):
            with pytest.raises(everlong.MemoryNotFoundError, match=f"no block {gone}$"):
                mm.text(gone)
        assert {block.id: mm.text(block.id) for block in mm.memory.blocks("c")}.items() <= texts.items()
    with pytest.raises(everlong.errors.ClosedError):
        mm.text(first.id)


def crc32c(data: bytes) -> int:
    """By its polynomial, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_a_memory_of_a_later_version_is_refused_as_one(folder: Path) -> None:
    """Its manifest as docs/format.md has it, whole, with the next number."""
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    checksum = re.compile(r'(?<=^\{\n  "crc32c": ")[0-9a-f]{8}')
    assert checksum.search(text).group() == f"{crc32c(checksum.sub('0' * 8, text).encode()):08x}"
    version = json.loads(text)["format_version"]
    text = checksum.sub("0" * 8, text.replace(f'"format_version": {version}', f'"format_version": {version + 1}'))
    manifest.write_text(checksum.sub(f"{crc32c(text.encode()):08x}", text))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for opened in (
        lambda: everlong.Memory.open(folder),
        lambda: everlong.Memory.open(folder, read_only=True),
        lambda: everlong.Memory.repair(folder),
        lambda: open_model(folder),
    ):
        with pytest.raises(everlong.NewerFormatError, match=str(version + 1)):
            opened()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


BOOK = random_text(3000)


def text_of(mm: everlong.MemoryModel, source: str) -> str:
    return "".join(mm.text(block.id) for block in mm.memory.blocks(source))


def read_onto_a_full_disk(folder: Path, goes_on: bool, pipe: Connection) -> None:
    """Tells what was refused, and what is read once there is room; until then no file grows much."""
    logging.disable()
    with open_model(folder) as mm:
        room = sum(file.stat().st_size for file in (folder / "segments").iterdir()) + 500_000
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            mm.read(BOOK, source="book")
        except everlong.MemoryIOError as error:
            pipe.send((str(error), isinstance(error, OSError), text_of(mm, "book")))
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        if goes_on:
            pipe.send(mm.read(BOOK, source="book"))


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_full_disk_is_told_and_read_on_when_there_is_room(folder: Path, goes_on: bool) -> None:
    """By the memory model that was refused, and by one that opens the memory later."""
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=read_onto_a_full_disk, args=(folder, goes_on, there))
    process.start()
    there.close()
    told, is_of_the_system, kept = here.recv()
    report = here.recv() if goes_on else None
    process.join()
    assert process.exitcode == 0
    assert re.search(r"cannot write to '.*\.kvseg': File too large", told)
    assert is_of_the_system
    with everlong.Memory.open(folder) as memory:
        assert memory.verify().damage == ()
    with open_model(folder) as mm:
        report = report or mm.read(BOOK, source="book")
        assert BOOK.startswith(kept)
        assert 0 < len(kept) == report.resumed_tokens < 2000
        assert report.tokens == 3000 - len(kept)
        assert text_of(mm, "book") == BOOK
        assert all(text_of(mm, source) == text for source, text in TEXTS.items())
        assert mm.memory.verify().damage == ()
