"""What a memory of many blocks costs: opening it, appending to it, forgetting from it, and the RAM that it holds.

    python benchmarks/blocks.py [--blocks 1000000] [--place folder|ram] [--json]

A memory of text alone, one page of eight tokens a block. Medians of calls at the end, so that a cost that grows with
the memory shows when runs with other numbers of blocks are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import everlong._core as _core

TOKENS = 8
SAMPLES = 200


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def manifest() -> _core.Manifest:
    return _core.Manifest(
        weights="benchmark",
        rope="",
        tokenizer="benchmark",
        layers=0,
        kv_heads=0,
        head_dim=0,
        page_tokens=64,
        codec="fp32",
    )


def append(memory: _core.Memory, block: int, random: np.random.Generator) -> int:
    return memory.append(
        stream=0,
        begin=TOKENS * block,
        end=TOKENS * (block + 1),
        sink_tokens=0,
        source=f"source {block % 1000}",
        created_at=float(block),
        tags=(),
        token_ids=random.integers(0, 50_000, TOKENS, dtype=np.int32),
        payload=np.zeros(0, np.uint8),
    )


def median_seconds(calls: int, call: Callable[[int], object]) -> float:
    seconds = []
    for i in range(calls):
        start = time.perf_counter()
        call(i)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--place", choices=["folder", "ram"], default="folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    random = np.random.default_rng(1)
    root = Path(tempfile.mkdtemp(prefix="everlong-blocks-"))
    folder = str(root / "memory") if options.place == "folder" else None
    try:
        figures: dict[str, float] = {"blocks": options.blocks}
        memory = _core.Memory.create(folder, manifest())
        start = time.perf_counter()
        for block in range(options.blocks):
            append(memory, block, random)
        memory.flush()
        figures["write_us_per_block"] = 1e6 * (time.perf_counter() - start) / options.blocks
        if folder is not None:
            start = time.perf_counter()
            memory.save_indexes()
            figures["save_indexes_ms"] = 1e3 * (time.perf_counter() - start)
            memory.close()
            before = resident_bytes()
            start = time.perf_counter()
            memory = _core.Memory.open(folder)
            figures["open_s"] = time.perf_counter() - start
            figures["open_rss_mb"] = (resident_bytes() - before) / 1e6
        figures["index_mb"] = memory.stats().index_bytes / 1e6
        figures["append_us"] = 1e6 * median_seconds(SAMPLES, lambda i: append(memory, options.blocks + i, random))
        figures["flush_ms"] = 1e3 * median_seconds(1, lambda _: memory.flush())
        figures["forget_ms"] = 1e3 * median_seconds(5, lambda i: memory.forget([1 + 7 * i]))
        figures["list_blocks_ms"] = 1e3 * median_seconds(3, lambda _: memory.blocks())
        figures["block_us"] = 1e6 * median_seconds(SAMPLES, lambda i: memory.block(2 + 7 * i))
        figures["threads"] = threading.active_count()
        memory.close()
    finally:
        shutil.rmtree(root)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:20s} {value:12.2f}")


if __name__ == "__main__":
    main()
