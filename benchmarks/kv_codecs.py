"""What each codec of the archive costs: bytes a token, nearness to the exact cache, and time to encode and decode.

    python benchmarks/kv_codecs.py [--model smollm2] [--contexts 6] [--tokens 1024] [--after 192] [--rounds 25] [--json]
                                   [--quality 0.0005 --quality 0.002 ...]

Bytes and nearness are those of `everlong doctor --codec`: contexts of the ends of the shipped books in fp32, the first
16 tokens and the newest 64 exact, and how near what is said behind them is to the exact cache, means over contexts.
Times are CPU time of one thread for one context of bfloat16, medians, so that other work on the machine counts little;
MB/s are of these bfloat16 numbers. `restore` decodes 704 tokens and rotates them into a frame; beside it is its time
over that of e4m3. A transform is fitted for each `--quality`, or taken from the cache. Its restore begins with the
coded pages of a memory in RAM.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from everlong import ops
from everlong.codecs.coded_context import PAGE, CodedContext, held_in_memory
from everlong.codecs.costs import CODECS, contexts_of, cost
from everlong.codecs.transform import tables_for
from everlong.models import DEFAULT_MODEL, load
from everlong.models.attach import attach
from everlong.models.fingerprint import fingerprint
from everlong.models.hardware import processor

RESTORED = 704


def seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median CPU time of a call, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    work()
    times = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    torch.set_num_threads(threads)
    return statistics.median(times)


def speed(codec: str, context: CodedContext, inv_freq: torch.Tensor, rounds: int) -> dict[str, float]:
    k, v = context.k.bfloat16(), context.v.bfloat16()
    layers, heads, tokens, dim = k.shape
    no_phase = torch.empty(tokens, 0)
    payload = ops.encode_kv(k, v, PAGE, codec)
    encode = seconds(lambda: ops.archive_kv(k, v, no_phase, no_phase, 0, tokens, PAGE, codec, out=payload), rounds)
    page = ops.payload_bytes(PAGE, PAGE, layers, heads, dim, codec)
    restored = min(RESTORED, tokens) // PAGE
    runs = torch.tensor([[i * page, PAGE, 0, PAGE, i * PAGE, i * PAGE] for i in range(tokens // PAGE)])
    phase = torch.zeros(tokens, dim // 2), torch.zeros(tokens, dim // 2)
    out = torch.zeros_like(k), torch.zeros_like(v)

    def restore(pages: int) -> float:
        table = runs[:pages]
        return seconds(lambda: ops.restore_kv(payload, table, *out, *phase, PAGE, codec, inv_freq), rounds)

    megabytes = 2 * k.numel() * k.element_size() / 1e6
    return {
        "encode_mb_s": megabytes / encode,
        "decode_mb_s": megabytes / restore(tokens // PAGE),
        "restore_ms": 1e3 * restore(restored),
    }


def speed_of_transform(
    tables: bytes, weights: str, context: CodedContext, inv_freq: torch.Tensor, rounds: int
) -> dict[str, float]:
    k, v = context.k.bfloat16(), context.v.bfloat16()
    tokens, dim = k.shape[2:]
    with held_in_memory(context.k, context.v, weights) as core:
        name = core.upkeep.put_transform(tables)

        def encode() -> None:
            core.upkeep.recode(1, "fp32")
            core.upkeep.recode(1, name)

        encoding = seconds(encode, 3)
        phase = torch.zeros(tokens, dim // 2), torch.zeros(tokens, dim // 2)
        out = torch.zeros_like(k), torch.zeros_like(v)

        def restore(pages: int) -> float:
            page = core.page_bytes(PAGE, "fp32")
            runs = torch.tensor([[i * page, PAGE, 0, PAGE, i * PAGE, i * PAGE] for i in range(pages)])
            payload = torch.empty(pages * page, dtype=torch.uint8)
            wanted = core.blocks.pages()[:pages]

            def once() -> None:
                core.blocks.read_pages(wanted, payload.numpy(), "fp32")
                ops.restore_kv(payload, runs, *out, *phase, PAGE, "fp32", inv_freq)

            return seconds(once, rounds)

        restore_all, restored = restore(tokens // PAGE), restore(min(RESTORED, tokens) // PAGE)
    megabytes = 2 * k.numel() * k.element_size() / 1e6
    return {"encode_mb_s": megabytes / encoding, "decode_mb_s": megabytes / restore_all, "restore_ms": 1e3 * restored}


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(model: Any, tokenizer: Any, options: argparse.Namespace) -> dict[str, Any]:
    served = attach(model.to(torch.float32), options.tokens)
    contexts = contexts_of(served, tokenizer, options.contexts, options.tokens, options.after)
    inv_freq = served.table(0).inv_freq.double()
    rows = {}
    for codec in ("e4m3-plain", *CODECS):
        rows[codec] = dataclasses.asdict(cost(contexts, codec)) | speed(codec, contexts[0], inv_freq, options.rounds)
        tell(f"{codec} is measured")
    for quality in options.quality:
        tables = tables_for(model, tokenizer, quality, log=tell)
        name, weights = f"transform {quality:g}", fingerprint(served, tokenizer).weights
        rows[name] = dataclasses.asdict(cost(contexts, name, tables, weights=weights))
        rows[name] |= speed_of_transform(tables, weights, contexts[0], inv_freq, options.rounds)
        tell(f"{name} is measured")
    base = rows["e4m3"]["restore_ms"]
    for row in rows.values():
        row["restore_of_e4m3"] = row["restore_ms"] / base if base else math.nan
    shape = {"layers": served.layers, "kv_heads": served.kv_heads, "head_dim": served.head_dim}
    return {"cpu": processor(), "torch": torch.__version__, **shape, "contexts": len(contexts), "codecs": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--contexts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of a context, a multiple of 64")
    parser.add_argument("--after", type=int, default=192, help="tokens that are read behind it")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--quality", type=float, action="append", default=[], help="of a transform; several times")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with torch.no_grad():
        report = measure(*load(options.model), options)
    if options.json:
        print(json.dumps(report, indent=2))
        return
    print(f"{report['cpu']}, torch {report['torch']}, {report['contexts']} contexts")
    print(f"{'codec':>16} {'bytes':>7} {'KL':>8} {'nats':>8} {'same':>7} {'encode':>8} {'decode':>8}   restore")
    for codec, row in report["codecs"].items():
        print(
            f"{codec:>16} {row['bytes']:7,.0f} {row['kl']:8.5f} {row['nats_lost']:+8.4f} {row['same_token']:7.2%}"
            f" {row['encode_mb_s']:8,.0f} {row['decode_mb_s']:8,.0f} {row['restore_ms']:6.2f} ms"
            f" {row['restore_of_e4m3']:5.2f}"
        )


if __name__ == "__main__":
    main()
