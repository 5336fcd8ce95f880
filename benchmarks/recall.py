"""What a question costs beyond its own forwards: search and restore, by how much the memory holds.

    python benchmarks/recall.py [--model smollm2] [--sizes 10000 100000 1000000] [--rounds 9] [--json]

One question of 16 tokens. Search: attention mass of the retrieval heads over every archived token, BM25 over every
page, their fusion, groups. Restore: the four groups' pages read from the memory (on disk, through the page cache),
decoded, rotated and written into the frame. The anchors of the same run: a plain read of as many bytes as the search
scans, and the forwards: of the question, which any way of answering pays, and of the best group, which
`recall_mode="auto"` (the default) reads again instead of restoring it. Medians.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
from grown_memory import grow, read_seed

import everlong
from everlong.attach import ServedModel
from everlong.machine import processor
from everlong.models import DEFAULT_MODEL, load
from everlong.recall import Tapped, query_layers, search, tap_question

QUESTION_TOKENS = 16


@dataclasses.dataclass(frozen=True)
class Cost:
    tokens: int  # the memory holds
    search_ms: float
    restore_ms: float
    restored_tokens: int
    scanned_bytes: int
    plain_read_ms: float  # of scanned_bytes, summed by torch
    question_ms: float  # its forward, of which there are two
    again_ms: float  # what the best group's forward takes longer than its restoring


def median_ms(work: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return 1e3 * statistics.median(seconds)


def measure(mm: everlong.MemoryModel, tokens: int, rounds: int) -> Cost:
    frame, profile = mm.frame, mm.profile
    assert profile is not None
    assert isinstance(frame.served, ServedModel)
    # A question in the words of the middle of the book, so that pages share words with it.
    ids = torch.from_numpy(mm.memory.core.token_ids(0, 4000, 4000 + QUESTION_TOKENS).astype(np.int64))
    layers = sorted(query_layers(frame.served, profile, mm.config))
    queries = tap_question(frame, ids, slice(0, len(ids)), layers)
    question = median_ms(lambda: tap_question(frame, ids, slice(0, len(ids)), layers), rounds)
    tapped = Tapped(ids.numpy().astype(np.int32), queries, profile)
    found = search(frame, tapped, mm.config)
    recalled = found.recalled(mm.config.order, mm.config.recalled_temperature)
    with frame.branch():
        frame.begin_prompt(None)
        as_configured = median_ms(lambda: frame.recall(recalled.pages, recalled.temperatures), rounds)
        frame.config = dataclasses.replace(mm.config, recall_mode="kv")
        restore = median_ms(lambda: frame.recall(recalled.pages, recalled.temperatures), rounds)
        frame.config = mm.config
        restored = frame.os.recalled_tokens
    kept_heads = len({(layer, kv_head) for layer, _, kv_head in profile.heads})
    number_bytes = 2 if mm.config.heads_keys == "bf16" else 1
    scanned = tokens * kept_heads * frame.served.head_dim * number_bytes
    plain = torch.ones(scanned // 8, dtype=torch.int64)
    return Cost(
        tokens=tokens,
        search_ms=median_ms(lambda: search(frame, tapped, mm.config), rounds),
        restore_ms=restore,
        restored_tokens=restored,
        scanned_bytes=scanned,
        plain_read_ms=median_ms(plain.sum, rounds),
        question_ms=question,
        again_ms=as_configured - restore,
    )


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
