"""One process writes a memory while others open it for reading: every reader sees a whole one."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import numpy as np
import pytest

import everlong._core as _core
from everlong.errors import MemoryBusyError, MemoryNotFoundError
from support.native import DIM, HEADS, KV_HEADS, Written, manifest
from support.processes import PROCESSES

TOKENS = 10


def opened_to_write(folder: str) -> _core.Memory:
    """Open the memory once nobody writes to it."""
    while True:
        try:
            memory = _core.Memory.open(folder, False, 0)
        except MemoryBusyError:
            time.sleep(0.001)
        else:
            memory.index.set_retrieval_heads(HEADS)
            return memory


def write(folder: str, rounds: int) -> None:
    """Append a block a round, and forget, compact and save now and then."""
    rng = np.random.default_rng(0)
    memory = opened_to_write(folder)
    for number in range(1, rounds + 1):
        Written(rng, 0, number * TOKENS, TOKENS, "").append_to(memory, tensors={"number": np.array(number)})
        memory.upkeep.flush()
        if number % 7 == 0:
            memory.blocks.forget([number - 3])
        if number % 11 == 0:
            memory.index.save()
        if number % 50 == 0:
            memory.upkeep.compact()
        memory.put_file("number", str(number).encode())
        if number % 100 == 0:
            memory.close()
            memory = opened_to_write(folder)
    memory.close()


def look(folder: str) -> int:
    """Open the memory for reading, use all of it, and return the newest block."""
    memory = _core.Memory.open(folder, True, 0)
    blocks = memory.blocks.infos()
    for block in [blocks[0], blocks[-1]]:
        try:
            ids = memory.blocks.token_ids(0, block.begin, block.end)
            pages = memory.blocks.pages_of(0, block.begin, block.end)
            out = np.empty(sum(memory.page_bytes(page.end - page.begin) for page in pages), np.uint8)
            memory.blocks.read_pages(pages, out)
            keys = memory.blocks.read_keys(pages[0], 1)
            assert memory.blocks.tensor(block.id, "number") == block.begin // TOKENS
        except MemoryNotFoundError:  # the writer has forgotten it since
            continue
        assert keys.shape == (KV_HEADS, pages[0].end - pages[0].begin, DIM)
        assert len(ids) == TOKENS
        np.testing.assert_allclose(np.linalg.norm(keys, axis=-1), 5, rtol=1e-5)  # as Written made them
        found = memory.search.find(token_ids=ids, kinds=["lexical"], max_groups=50, token_budget=1 << 20)
        assert found.groups
    report = memory.upkeep.verify()
    assert report.damage == []
    assert int(memory.file("number") or 0) + 1 >= blocks[-1].id - 1
    memory.upkeep.stats()
    memory.close()
    return blocks[-1].id


@pytest.mark.parametrize("rounds", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_reader_beside_a_writer_in_another_process(rounds: int, tmp_path: Path) -> None:
    folder = str(tmp_path / "memory")
    memory = _core.Memory.create(folder, manifest(), 0)
    Written(np.random.default_rng(1), 0, 0, TOKENS, "").append_to(memory, tensors={"number": np.array(0)})
    memory.close()
    writer = PROCESSES.Process(target=write, args=(folder, rounds))
    writer.start()
    newest, looks = 0, 0
    try:
        while looks < rounds or writer.is_alive():
            seen = look(folder)
            assert seen >= newest  # what is durable stays, and the last block is never forgotten
            newest = seen
            looks += 1
            if looks % 10 == 0 and writer.is_alive():
                with contextlib.suppress(MemoryBusyError):  # it says who writes; or it came between two of the writer's
                    _core.Memory.open(folder, False, 0).close()
    finally:
        writer.join()
    assert writer.exitcode == 0
    assert look(folder) == rounds + 1
