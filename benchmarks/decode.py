"""Decoding over a frame against transformers' own decoding, by how much the memory holds.

    python benchmarks/decode.py [--model smollm2] [--sizes 10000 100000 1000000] [--tokens 16] [--rounds 12] [--json]

The anchor of the same run: the same model over a DynamicCache of as many tokens as the frame attends to, token by
token. The ratio is everlong's tokens a second over the anchor's; what a memory holds must not change it. Memories of
all sizes are open at once and take turns, upwards and downwards, so that a machine that gets faster or slower does so
for each. Medians over tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from typing import Any

import torch
import transformers
from grown_memory import book_ids, grow, read_seed

import everlong
from everlong.kv_frame import KvFrame
from everlong.machine import processor
from everlong.models import DEFAULT_MODEL, load


def resident_tokens(mm: everlong.MemoryModel) -> int:
    """What a token attends to."""
    assert isinstance(mm.frame, KvFrame)
    return mm.frame.cache.length


def frame_seconds(mm: everlong.MemoryModel, ids: torch.Tensor) -> list[float]:
    """Seconds a token for ids [n], fed one by one and forgotten again."""
    seconds = []
    with mm.frame.branch():
        for token in ids:
            started = time.perf_counter()
            mm.frame.extend(token[None], "generated")
            seconds.append(time.perf_counter() - started)
    return seconds


@torch.no_grad()  # as transformers' generate
def anchor_seconds(model: Any, ids: torch.Tensor, length: int) -> list[float]:
    """The same behind a DynamicCache that holds the first `length` of ids already."""
    cache = transformers.DynamicCache(config=model.config)
    model(input_ids=ids[None, :length], past_key_values=cache, use_cache=True, logits_to_keep=1)
    seconds = []
    for token in ids[length:]:
        started = time.perf_counter()
        model(input_ids=token[None, None], past_key_values=cache, use_cache=True, logits_to_keep=1)
        seconds.append(time.perf_counter() - started)
    return seconds


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
        memories = []
        for size in sorted(options.sizes):
            mm = open_memories.enter_context(everlong.MemoryModel(model, tokenizer, f"{folder}/{size}.everlong"))
            read_seed(mm)
            memories.append((grow(mm, size), mm))
        ids = book_ids(mm, 3 * mm.config.frame_tokens)
        ours: list[list[float]] = [[] for _ in memories]
        anchor: list[list[float]] = [[] for _ in memories]
        turns = list(range(len(memories)))
        for _ in range(options.rounds):
            turns.reverse()
            for number in turns:
                mm = memories[number][1]
                length = resident_tokens(mm)
                ours[number] += frame_seconds(mm, ids[: options.tokens])
                anchor[number] += anchor_seconds(model, ids[: length + options.tokens], length)
        rows = [
            {
                "memory_tokens": held,
                "frame_tokens": resident_tokens(mm),
                "everlong_tokens_per_second": 1 / statistics.median(mine),
                "anchor_tokens_per_second": 1 / statistics.median(theirs),
                "ratio": statistics.median(theirs) / statistics.median(mine),
            }
            for (held, mm), mine, theirs in zip(memories, ours, anchor, strict=True)
        ]
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
