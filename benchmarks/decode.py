"""Decoding over a frame against transformers' own decoding, by how much the memory holds.

    python benchmarks/decode.py [--model smollm2] [--sizes 10000 100000 1000000] [--tokens 16] [--rounds 12] [--json]

The anchor of the same run is the same model over a DynamicCache of as many tokens as the frame attends to, token by
token. The ratio is everlong's tokens a second over the anchor's. What a memory holds must not change it. Memories of
all sizes are made first, then opened at once, so that no frame's buffers lie where RAM was emptier. They take turns,
upwards and downwards, so that a machine that gets faster or slower does so for each. Figures are medians over tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import tempfile

import torch

import everlong
from everlong.bench.decoding import measure
from everlong.bench.grown_memory import book_ids, grow, read_seed
from everlong.models import DEFAULT_MODEL, load
from everlong.models.hardware import processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--tokens", type=int, default=16, help="tokens a round")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model, tokenizer = load(options.model)
    with contextlib.ExitStack() as open_memories:
        folder = open_memories.enter_context(tempfile.TemporaryDirectory())
        held = {}
        for size in sorted(options.sizes):
            with everlong.MemoryModel(model, tokenizer, f"{folder}/{size}.everlong") as mm:
                read_seed(mm)
                held[size] = grow(mm, size)
        memories = []
        for size, tokens in held.items():
            mm = open_memories.enter_context(everlong.MemoryModel(model, tokenizer, f"{folder}/{size}.everlong"))
            memories.append((tokens, mm))
        ids = book_ids(mm, 3 * mm.config.frame.tokens)
        rows = [dataclasses.asdict(row) for row in measure(memories, ids, options.tokens, options.rounds)]
    if options.json:
        print(json.dumps({"cpu": processor(), "torch": torch.__version__, "rows": rows}, indent=2))
        return
    print(f"{processor()}, torch {torch.__version__}, {str(model.dtype).removeprefix('torch.')}")
    print(f"{'memory':>12} {'frame':>7} {'everlong':>16} {'transformers':>16} {'ratio':>6}")
    for row in rows:
        print(
            f"{row['memory_tokens']:12,} {row['frame_tokens']:7,} {row['everlong_tokens_per_second']:10.1f} tok/s"
            f" {row['anchor_tokens_per_second']:10.1f} tok/s {row['ratio']:6.2f}"
        )


if __name__ == "__main__":
    main()
