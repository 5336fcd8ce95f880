"""What a memory of many blocks costs: opening it, appending to it, forgetting from it, and the RAM that it holds.

    python benchmarks/blocks.py [--blocks 1000000] [--place folder|ram] [--json]

The memory is of text alone, with one page of eight tokens a block. Figures are medians of calls at the end. So a cost
that grows with the memory shows when runs with other numbers of blocks are compared. A folder is opened in its own
process. So the RAM that this takes, at the end and at the peak, can be compared with what the memory says that its
index takes. Seconds of CPU are what an open costs where nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import everlong._core as _core

TOKENS = 8
SAMPLES = 200
OPENS = 5


def resident_mb(field: str) -> float:
    """Return VmRSS, what this process takes, or VmHWM, its peak."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1e3


def opened(folder: str) -> dict[str, float]:
    """Return what opening a memory costs this process, which has done nothing else."""
    before = resident_mb("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    memory = _core.Memory.open(folder)
    figures = {"open_s": time.perf_counter() - wall, "open_cpu_s": time.process_time() - cpu}
    figures["open_resident_mb"] = resident_mb("VmRSS") - before
    figures["open_peak_mb"] = resident_mb("VmHWM") - before
    figures["index_mb"] = memory.upkeep.stats().index_bytes / 1e6
    memory.close()
    return figures


def opened_elsewhere(folder: str) -> dict[str, float]:
    runs = []
    for _ in range(OPENS):
        done = subprocess.run(
            [sys.executable, __file__, "--open", folder], check=True, stdout=subprocess.PIPE, text=True
        )
        runs.append(json.loads(done.stdout))
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


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
    return memory.blocks.append(
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
    parser.add_argument("--open", metavar="FOLDER", help="print only what opening this memory costs, as JSON")
    options = parser.parse_args()
    if options.open is not None:
        print(json.dumps(opened(options.open)))
        return

    if options.blocks < 8 * SAMPLES:  # blocks are looked up seven apart
        parser.error(f"--blocks is {options.blocks}, expected at least {8 * SAMPLES}")

    random = np.random.default_rng(1)
    root = Path(tempfile.mkdtemp(prefix="everlong-blocks-"))
    folder = str(root / "memory") if options.place == "folder" else None
    try:
        figures: dict[str, float] = {"blocks": options.blocks}
        memory = _core.Memory.create(folder, manifest())
        start = time.perf_counter()
        for block in range(options.blocks):
            append(memory, block, random)
        memory.upkeep.flush()
        figures["write_us_per_block"] = 1e6 * (time.perf_counter() - start) / options.blocks
        if folder is not None:
            start = time.perf_counter()
            memory.index.save()
            figures["save_indexes_ms"] = 1e3 * (time.perf_counter() - start)
            memory.close()
            figures |= opened_elsewhere(folder)
            memory = _core.Memory.open(folder)
        else:
            figures["index_mb"] = memory.upkeep.stats().index_bytes / 1e6
        figures["append_us"] = 1e6 * median_seconds(SAMPLES, lambda i: append(memory, options.blocks + i, random))
        figures["flush_ms"] = 1e3 * median_seconds(1, lambda _: memory.upkeep.flush())
        figures["forget_ms"] = 1e3 * median_seconds(5, lambda i: memory.blocks.forget([1 + 7 * i]))
        figures["list_blocks_ms"] = 1e3 * median_seconds(3, lambda _: memory.blocks.infos())
        figures["block_us"] = 1e6 * median_seconds(SAMPLES, lambda i: memory.blocks.info(2 + 7 * i))
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
