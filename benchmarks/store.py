"""The host-memory store against memcpy and against the disk itself, in one run.

    python benchmarks/store.py [--folder DIR] [--tokens 131072] [--json]

A memory of SmolLM2's geometry (30 layers, 3 KV heads of 64, e4m3) is written block by block, read from RAM and read
from disk. Every checksum is checked on the way in. The anchors move the same bytes in pieces of the same size. For
the RAM tier it is memcpy, with as many threads. For the disk it is one file of the same size, written and fsynced once.
The file is read in order as `dd` does, and at random with 32 threads, through the same page cache, which is emptied
before every reading. Figures are medians of alternating rounds, every other one in reverse. `--tokens 1000000` shows
what a million tokens cost to reopen.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from memcpy import memcpy

import everlong._core as _core
from everlong.models.hardware import processor

LAYERS, KV_HEADS, HEAD_DIM, PAGE_TOKENS, BLOCK_TOKENS = 30, 3, 64, 64, 512
QUEUE_DEPTH = 32
DD_BYTES = 1 << 20
BATCH_PAGES = 32


def manifest() -> _core.Manifest:
    return _core.Manifest(
        weights="benchmark",
        rope="benchmark",
        tokenizer="benchmark",
        layers=LAYERS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        page_tokens=PAGE_TOKENS,
        codec="e4m3",
    )


def drop_from_page_cache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in (".kvseg", ".raw"):
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def gigabytes_per_second(count: int, run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return count / (time.perf_counter() - started) / 1e9


def medians(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the median of what every run returns.

    Every other round goes through the runs backwards, so that none is always the first.
    """
    figures: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        for name in list(runs)[:: -1 if turn % 2 else 1]:
            figures[name].append(runs[name]())
    return {name: statistics.median(values) for name, values in figures.items()}


class Benchmark:
    def __init__(self, folder: Path, tokens: int, rounds: int) -> None:
        self.folder, self.tokens, self.rounds = folder, tokens // BLOCK_TOKENS * BLOCK_TOKENS, rounds
        self.memory_folder = str(folder / "memory")
        with_layout = _core.Memory.create(None, manifest())
        self.page_bytes = with_layout.page_bytes(PAGE_TOKENS)
        with_layout.close()
        self.block_bytes = self.page_bytes * (BLOCK_TOKENS // PAGE_TOKENS)
        # Codes below 0x78 of e4m3, scales of any size: every key is finite, as the index requires.
        self.payload = np.random.default_rng(0).integers(0, 0x70, self.block_bytes, dtype=np.uint8)
        self.ids = np.random.default_rng(1).integers(0, 49_152, BLOCK_TOKENS, dtype=np.int32)

    def write(self, memory: _core.Memory, first: int, last: int) -> None:
        for begin in range(first, last, BLOCK_TOKENS):
            memory.blocks.append(
                stream=0,
                begin=begin,
                end=begin + BLOCK_TOKENS,
                sink_tokens=0,
                source="benchmark",
                created_at=0.0,
                tags=[],
                token_ids=self.ids,
                payload=self.payload,
            )
        memory.upkeep.flush()

    def append(self) -> dict[str, float]:
        """Write the memory, and the same bytes as one file. What the last round wrote stays."""
        payload_bytes = self.tokens // BLOCK_TOKENS * self.block_bytes
        folder, plain = Path(self.memory_folder), self.folder / "anchor.raw"

        def ours() -> float:
            shutil.rmtree(folder, ignore_errors=True)
            os.sync()  # the removal of a file is not timed
            with contextlib.closing(_core.Memory.create(self.memory_folder, manifest(), host_bytes=0)) as memory:
                return gigabytes_per_second(payload_bytes, lambda: self.write(memory, 0, self.tokens))

        def write_plain() -> None:
            with open(plain, "wb", buffering=0) as file:
                for _ in range(self.tokens // BLOCK_TOKENS):
                    file.write(self.payload.data)
                os.fsync(file.fileno())

        def anchor() -> float:
            plain.unlink(missing_ok=True)
            os.sync()
            return gigabytes_per_second(payload_bytes, write_plain)

        figures = medians({"append": ours, "append_anchor": anchor}, self.rounds)
        with contextlib.closing(_core.Memory.open(self.memory_folder, read_only=True)) as memory:
            stats = memory.upkeep.stats()
        catalog = sum(path.stat().st_size for path in folder.glob("catalog.sqlite*"))
        return figures | {
            "payload_bytes": stats.payload_bytes,
            "disk_bytes": stats.disk_bytes,
            "catalog_share": catalog / stats.payload_bytes,
        }

    def reopen(self) -> dict[str, float]:
        def seconds() -> float:
            started = time.perf_counter()
            with contextlib.closing(_core.Memory.open(self.memory_folder)) as memory:
                taken = time.perf_counter() - started
                assert memory.blocks.stream_end(0) == self.tokens
                return taken

        return medians({"reopen_seconds": seconds}, self.rounds)

    def read_ram(self) -> dict[str, float]:
        """Read pages that are in the RAM tier, against memcpy of as many bytes, page by page, in the same order."""
        memory = _core.Memory.open(self.memory_folder, read_only=True, host_bytes=2 << 30)
        pages = memory.blocks.pages()[: (1 << 30) // self.page_bytes]
        count = len(pages) * self.page_bytes
        out = np.zeros(count, dtype=np.uint8)
        source = np.random.default_rng(2).integers(0, 255, count, dtype=np.uint8)
        memory.blocks.read_pages(pages, out)  # now they are in RAM
        order = list(range(len(pages)))
        random.Random(3).shuffle(order)
        shuffled = [pages[i] for i in order]
        to, begin = out.ctypes.data, source.ctypes.data
        pieces = [
            (to + at * self.page_bytes, begin + i * self.page_bytes, self.page_bytes) for at, i in enumerate(order)
        ]
        runs: dict[str, Callable[[], float]] = {
            "ram_anchor": lambda: gigabytes_per_second(count, lambda: memcpy(pieces)),
            "ram": lambda: gigabytes_per_second(count, lambda: memory.blocks.read_pages(shuffled, out)),
        }
        figures = medians(runs, self.rounds)
        memory.close()
        return figures

    def read_disk(self) -> dict[str, float]:
        """Read all pages in order and some at random, from disk, against the plain file."""
        memory = _core.Memory.open(self.memory_folder, read_only=True, host_bytes=0)
        pages = memory.blocks.pages()[: (4 << 30) // self.page_bytes]
        chosen = random.Random(4).sample(pages, min(len(pages), (1 << 30) // self.page_bytes))
        in_order = [pages[i : i + BATCH_PAGES] for i in range(0, len(pages), BATCH_PAGES)]
        at_random = [chosen[i : i + BATCH_PAGES] for i in range(0, len(chosen), BATCH_PAGES)]
        out = [np.zeros(BATCH_PAGES * self.page_bytes, dtype=np.uint8) for _ in range(2)]

        def read(batches: list[list[_core.PageRef]]) -> None:
            """Use a batch while the next one is read, as a recall does."""
            under_way: _core.PendingReads | None = None
            for i, batch in enumerate(batches):
                reads = memory.blocks.start_read_pages(batch, 0, LAYERS, out[i % 2][: len(batch) * self.page_bytes])
                if under_way is not None:
                    under_way.wait()
                under_way = reads
            if under_way is not None:
                under_way.wait()

        anchor = os.open(self.folder / "anchor.raw", os.O_RDONLY)
        places = [(page.begin // PAGE_TOKENS) * self.page_bytes for page in chosen]
        buffers = [bytearray(self.page_bytes) for _ in range(QUEUE_DEPTH)]

        def dd() -> None:
            buffer = bytearray(DD_BYTES)
            for begin in range(0, len(pages) * self.page_bytes, DD_BYTES):
                os.preadv(anchor, [buffer], begin)

        def read_at_random(pool: concurrent.futures.ThreadPoolExecutor) -> None:
            def some(worker: int) -> None:
                for place in places[worker::QUEUE_DEPTH]:
                    os.preadv(anchor, [buffers[worker]], place)

            list(pool.map(some, range(QUEUE_DEPTH)))

        def from_disk(count: int, run: Callable[[], object]) -> float:
            drop_from_page_cache(self.folder)
            return gigabytes_per_second(count * self.page_bytes, run)

        with concurrent.futures.ThreadPoolExecutor(QUEUE_DEPTH) as pool:
            runs: dict[str, Callable[[], float]] = {
                "disk_anchor": lambda: from_disk(len(pages), dd),
                "disk": lambda: from_disk(len(pages), lambda: read(in_order)),
                "random_anchor": lambda: from_disk(len(chosen), lambda: read_at_random(pool)),
                "random": lambda: from_disk(len(chosen), lambda: read(at_random)),
            }
            figures = medians(runs, self.rounds)
        os.close(anchor)
        memory.close()
        return figures


def print_table(result: dict[str, Any]) -> None:
    print(f"{result['cpu']}, {os.cpu_count()} cores")
    print(
        f"{result['tokens']:,} tokens, {result['payload_bytes'] / 1e9:.1f} GB, pages of {result['page_bytes']:,} bytes"
    )
    print(f"{'':34}{'everlong':>10}{'anchor':>10}{'ratio':>8}")
    for name, label in (
        ("append", "append, durable      (write+fsync)"),
        ("ram", "read, RAM tier            (memcpy)"),
        ("disk", "read, disk, in order          (dd)"),
        ("random", "read, disk, random   (32 threads)"),
    ):
        ours, anchor = result[name], result[f"{name}_anchor"]
        print(f"{label:34}{ours:7.2f} GB/s{anchor:5.2f} GB/s{ours / anchor:6.2f}")
    print(f"reopened in {result['reopen_seconds']:.2f} s; catalog {result['catalog_share']:.2%} of the payload")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="folder to write to; by default a temporary one")
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="everlong-store-", dir=options.folder))
    try:
        benchmark = Benchmark(folder, options.tokens, options.rounds)
        needed = 3 * benchmark.tokens // BLOCK_TOKENS * benchmark.block_bytes
        if shutil.disk_usage(folder).free < needed:
            raise SystemExit(
                f"{needed / 1e9:.0f} GB are needed in {folder.parent}: fewer --tokens, or another --folder"
            )
        result: dict[str, Any] = {
            "cpu": processor(),
            "tokens": benchmark.tokens,
            "page_bytes": benchmark.page_bytes,
        }
        for measure in (benchmark.append, benchmark.reopen, benchmark.read_ram, benchmark.read_disk):
            result |= measure()
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print_table(result)


if __name__ == "__main__":
    main()
