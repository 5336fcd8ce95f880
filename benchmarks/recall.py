"""What a question costs beside its own forward passes: search and restore, by how much the memory holds.

    python benchmarks/recall.py [--model smollm2] [--sizes 10000 100000 1000000] [--rounds 9] [--json]

It asks one question of 16 tokens. Search is the attention mass of the retrieval heads over every archived token, BM25
over every page, their fusion, and the groups. Restore is the four groups' pages, read from the memory (on disk, through
the page cache), decoded, rotated and written into the frame. The run has three anchors. One is a plain read of as many
bytes as the search scans. One is the question's forward pass, which any way of answering pays. One is the forward pass
of the best group, which `answer.recall_mode="auto"` (the default) reads again instead of restoring it. All figures are
medians.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile

import torch

import everlong
from everlong.bench.asking import measure
from everlong.bench.grown_memory import grow, read_seed
from everlong.models import DEFAULT_MODEL, load
from everlong.models.hardware import processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model, tokenizer = load(options.model)
    costs = []
    with (
        tempfile.TemporaryDirectory() as folder,
        everlong.MemoryModel(model, tokenizer, f"{folder}/grown.everlong") as mm,
    ):
        read_seed(mm)
        for size in sorted(options.sizes):
            costs.append(measure(mm, grow(mm, size), options.rounds))
    if options.json:
        result = {"cpu": processor(), "threads": torch.get_num_threads(), "costs": list(map(dataclasses.asdict, costs))}
        print(json.dumps(result, indent=2))
        return
    print(f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}, {options.model}")
    print(
        f"{'memory':>12} {'search':>9} {'restore':>9} {'both':>9} | {'plain read':>10} {'ratio':>6} | {'question':>9} "
        f"{'read again':>10}"
    )
    for cost in costs:
        print(
            f"{cost.tokens:12,} {cost.search_ms:6.1f} ms {cost.restore_ms:6.1f} ms "
            f"{cost.search_ms + cost.restore_ms:6.1f} ms | {cost.plain_read_ms:7.1f} ms "
            f"{cost.search_ms / max(cost.plain_read_ms, 1e-9):6.1f} | {cost.question_ms:6.1f} ms "
            f"{cost.again_ms:7.1f} ms"
        )


if __name__ == "__main__":
    main()
