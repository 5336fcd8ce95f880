"""Searching an archive by meaning, beside numpy over the same vectors, in one run.

    python benchmarks/meaning.py [--tokens 131072 1000000] [--question 16] [--rounds 15] [--json]

Every 4 tokens have a random int8 vector of 128 numbers. Pages have 64 tokens, blocks 512. Figures are medians of the
rounds:

- `search`: a whole search by the part `meaning`: every vector scored, pages alone and with their neighbours ranked,
  groups made;
- `numpy`: the same scores from the same int8: cast to fp32, one matmul, maxima over pages and their neighbours,
  weighted sums;
- `numpy fp32`: the same with the cast done beforehand, for four times the memory;
- `index`: what the part takes in RAM;
- `made`: how long set_meaning takes over a memory that has the vectors among its tensors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.models.hardware import processor

DIM, GROUP, PAGE, BLOCK = 128, 4, 64, 512
PACK = "benchmark"
VECTORS = PAGE // GROUP  # of a page
NO_TOKENS = np.zeros(0, dtype=np.int32)


def seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median of `rounds` calls, after one that warms up."""
    work()
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def memory_of(codes: Any, folder: str) -> _core.Memory:
    """Return a memory of text alone whose blocks have vectors: codes [blocks, BLOCK / GROUP, DIM]."""
    manifest = _core.Manifest(
        weights="", rope="", tokenizer="", layers=0, kv_heads=0, head_dim=0, page_tokens=PAGE, codec="bf16"
    )
    memory = _core.Memory.create(folder, manifest)
    for number, of_block in enumerate(codes):
        memory.blocks.append(
            stream=0,
            begin=number * BLOCK,
            end=(number + 1) * BLOCK,
            sink_tokens=0,
            source="",
            created_at=0,
            tags=[],
            token_ids=np.zeros(BLOCK, dtype=np.int32),
            payload=np.zeros(0, dtype=np.uint8),
            tensors={f"meaning.{PACK}": of_block},
        )
    memory.upkeep.flush()
    return memory


def scores_by_numpy(vectors: Any, per_length: Any, rows: Any) -> tuple[Any, Any]:
    """Return scores of every page alone and with its neighbours.

    `vectors` are [N, DIM] in int8 or fp32, `rows` [T, DIM] with their weights, `per_length` [N] 1 over the length of a
    vector.
    """
    cosines = vectors.astype(np.float32, copy=False) @ rows.T * per_length[:, None]
    maxima = cosines.reshape(-1, VECTORS, len(rows)).max(1)
    wide = maxima.copy()
    np.maximum(wide[1:], maxima[:-1], out=wide[1:])
    np.maximum(wide[:-1], maxima[1:], out=wide[:-1])
    return maxima.sum(1), wide.sum(1)


def measure(tokens: int, question: int, rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    blocks = -(-tokens // BLOCK)
    codes = rng.integers(-127, 128, (blocks, BLOCK // GROUP, DIM), dtype=np.int8)
    rows = rng.standard_normal((question, DIM), dtype=np.float32)
    # One block answers the question, as far as its vectors go; no other is near it.
    answer = blocks // 3
    codes[answer] = np.rint(np.resize(rows * (127 / np.abs(rows).max()), codes[answer].shape))
    with tempfile.TemporaryDirectory() as folder:
        memory = memory_of(codes, folder + "/memory")
        without = memory.upkeep.stats().index_bytes
        made = []
        for _ in range(3):
            memory.index.set_meaning(None)
            started = time.perf_counter()
            memory.index.set_meaning(PACK, DIM, GROUP)
            made.append(time.perf_counter() - started)

        def search() -> _core.SearchResult:
            return memory.search.find(token_ids=NO_TOKENS, meaning_query=rows, kinds=["meaning"])

        result: dict[str, Any] = {
            "tokens": blocks * BLOCK,
            "token_bytes": (memory.upkeep.stats().index_bytes - without) / (blocks * BLOCK),
            "made": statistics.median(made),
            "search": seconds(search, rounds),
        }
        found = search()
        memory.close()
    flat = codes.reshape(-1, DIM)
    as_fp32 = flat.astype(np.float32)
    per_length = 1 / np.linalg.norm(as_fp32, axis=1)
    for scores in scores_by_numpy(as_fp32, per_length, rows):
        assert scores.argmax() * PAGE // BLOCK == answer, "numpy does not find the block"
    assert answer in {page.begin // BLOCK for page in found.groups[0].pages}, "the part does not find the block"
    result["numpy"] = seconds(lambda: scores_by_numpy(flat, per_length, rows), rounds)
    result["numpy fp32"] = seconds(lambda: scores_by_numpy(as_fp32, per_length, rows), rounds)
    return result


def print_report(report: dict[str, Any]) -> None:
    print(f"{report['cpu']}, torch {report['torch']}, {report['threads']} threads, a question of {report['question']}")
    header = ("tokens", "index", "made", "search", "numpy", "ratio", "numpy fp32", "ratio")
    widths = (11, 14, 10, 10, 10, 7, 11, 7)
    print("\n" + " ".join(f"{name:>{width}}" for name, width in zip(header, widths, strict=True)))
    for row in report["archives"]:
        cells = [f"{row['tokens']:,}", f"{row['token_bytes']:.1f} B/token"]
        cells += [f"{row[name] * 1e3:.1f} ms" for name in ("made", "search", "numpy")]
        cells += [f"{row['numpy'] / row['search']:.1f}x", f"{row['numpy fp32'] * 1e3:.1f} ms"]
        cells += [f"{row['numpy fp32'] / row['search']:.1f}x"]
        print(" ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[131_072, 1_000_000])
    parser.add_argument("--question", type=int, default=16, help="tokens of the question")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report: dict[str, Any] = {"cpu": processor(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    report["question"] = options.question
    report["archives"] = [measure(tokens, options.question, options.rounds) for tokens in options.tokens]
    print(json.dumps(report, indent=2)) if options.json else print_report(report)


if __name__ == "__main__":
    main()
