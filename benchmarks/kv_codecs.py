"""What each codec of the archive costs: bytes a token, nearness to the exact cache, and time to encode and decode.

    python benchmarks/kv_codecs.py [--model smollm2] [--contexts 6] [--tokens 1024] [--after 192] [--rounds 25] [--json]
                                   [--quality 0.0005 --quality 0.002 ...]

A context of a shipped book is prefilled in fp32. Its keys are un-rotated, coded, decoded and rotated back, and the next
tokens of the book are read behind it. The first 16 tokens and the newest 64 stay exact. KL, nats lost and how often
the likeliest token is the same are beside the exact cache, means over contexts, which lie at the ends of the books.
Times are CPU time of one thread for one context of bfloat16, medians, so that other work on the machine counts little;
MB/s are of these bfloat16 numbers. `restore` decodes 704 tokens and rotates them into a frame; beside it is its time
over that of e4m3. A transform is fitted for each `--quality`, or taken from the cache. Its restore begins with the
coded pages of a memory in RAM.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import safetensors.torch
import torch
from transformers import DynamicCache

from everlong import ops
from everlong.data import shipped_books
from everlong.models import DEFAULT_MODEL, load
from everlong.models.machine import processor
from everlong.models.releases import cache_argument
from everlong.training.coded_context import held_in_memory, through_memory
from everlong.training.transform import tables_for

PAGE = 64
SINKS, NEWEST = 16, 64  # tokens that stay exact
RESTORED = 704
Coded = Callable[["Context"], tuple[torch.Tensor, torch.Tensor]]
CODECS = ("bf16", "e4m3-plain", "e4m3", "e5m2", "int8", "int6", "k8v4", "k5v4", "int4")


class Context(NamedTuple):
    """A prefilled text: un-rotated keys and values [L, Hkv, T, D], what follows, and the exact log-probabilities."""

    k: torch.Tensor
    v: torch.Tensor
    after: torch.Tensor
    exact: torch.Tensor


class Reader:
    """A model whose layers all have full attention and one RoPE, and the way of its keys from and to rotation."""

    def __init__(self, model: Any) -> None:
        self.model = model.to(torch.float32)
        self.rope = model.model.rotary_emb
        self._cache = cache_argument(model)

    def prefill(self, ids: torch.Tensor, tokens: int) -> Context:
        cache: Any = DynamicCache()
        self.model(ids[None, :tokens], use_cache=True, logits_to_keep=1, **{self._cache: cache})
        keys = torch.cat([layer.keys for layer in cache.layers])
        values = torch.cat([layer.values for layer in cache.layers])
        cos, sin = self.rope(keys, torch.arange(tokens)[None])
        k, v = ops.derotate_kv(keys, values, cos, sin)
        return Context(k, v, ids[tokens:], self.log_probabilities(k, v, ids[tokens:]))

    def log_probabilities(self, k: torch.Tensor, v: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        """Return those of the tokens behind each of `after` but the last."""
        tokens = k.shape[2]
        keys, values = ops.rerotate_kv(k, v, torch.arange(tokens), self.rope.inv_freq, self.rope.attention_scaling)
        cache = DynamicCache()
        for layer, (of_layer, with_it) in enumerate(zip(keys, values, strict=True)):
            cache.update(of_layer[None], with_it[None], layer)
        positions = torch.arange(tokens, tokens + len(after) - 1)[None]
        out = self.model(after[None, :-1], position_ids=positions, use_cache=True, **{self._cache: cache})
        return torch.log_softmax(out.logits[0].float(), -1)


def with_codec(codec: str) -> Coded:
    """Return what encodes and decodes keys and values."""

    def coded(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
        layers, heads, tokens, dim = context.k.shape
        payload = ops.encode_kv(context.k, context.v, PAGE, codec)
        return ops.decode_kv(payload, layers, heads, tokens, dim, PAGE, codec, torch.float32)

    return coded


def decoded(codec: Coded, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values as a codec keeps them, exact at both ends."""
    coded = codec(context)
    for exact, of_codec in zip((context.k, context.v), coded, strict=True):
        of_codec[:, :, :SINKS] = exact[:, :, :SINKS]
        of_codec[:, :, -NEWEST:] = exact[:, :, -NEWEST:]
    return coded


def nearness(reader: Reader, codec: Coded, contexts: list[Context]) -> dict[str, float]:
    kl, nats, same = [], [], []
    for context in contexts:
        got = reader.log_probabilities(*decoded(codec, context), context.after)
        exact, said = context.exact, context.after[1:, None]
        kl.append(float((exact.exp() * (exact - got)).sum(-1).mean()))
        nats.append(float((exact.gather(1, said) - got.gather(1, said)).mean()))
        same.append(float((exact.argmax(-1) == got.argmax(-1)).float().mean()))
    return {"kl": statistics.fmean(kl), "nats_lost": statistics.fmean(nats), "same_token": statistics.fmean(same)}


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


def speed(codec: str, context: Context, rope: Any, rounds: int) -> dict[str, float]:
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
        table, inv_freq = runs[:pages], rope.inv_freq.double()
        return seconds(lambda: ops.restore_kv(payload, table, *out, *phase, PAGE, codec, inv_freq), rounds)

    megabytes = 2 * k.numel() * k.element_size() / 1e6
    return {
        "encode_mb_s": megabytes / encode,
        "decode_mb_s": megabytes / restore(tokens // PAGE),
        "restore_ms": 1e3 * restore(restored),
    }


def of_transform(
    reader: Reader, tokenizer: Any, quality: float, contexts: list[Context], rounds: int
) -> dict[str, float]:
    tables = tables_for(reader.model, tokenizer, quality, told=lambda text: print(text, file=sys.stderr, flush=True))
    weights = bytes(safetensors.torch.load(tables)["weights"].tolist()).decode()
    sizes: list[float] = []

    def coded(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
        k, v, size = through_memory(context.k, context.v, "", tables, weights=weights)
        sizes.append(size)
        return k, v

    near = nearness(reader, coded, contexts)
    k, v = contexts[0].k.bfloat16(), contexts[0].v.bfloat16()
    tokens, dim = k.shape[2:]
    with held_in_memory(contexts[0].k, contexts[0].v, weights) as core:
        name = core.upkeep.put_transform(tables)

        def encode() -> None:
            core.upkeep.recode(1, "fp32")
            core.upkeep.recode(1, name)

        encoding = seconds(encode, 3)
        phase, out = (
            (torch.zeros(tokens, dim // 2), torch.zeros(tokens, dim // 2)),
            (torch.zeros_like(k), torch.zeros_like(v)),
        )

        def restore(pages: int) -> float:
            page, inv_freq = core.page_bytes(PAGE, "fp32"), reader.rope.inv_freq.double()
            runs = torch.tensor([[i * page, PAGE, 0, PAGE, i * PAGE, i * PAGE] for i in range(pages)])
            payload = torch.empty(pages * page, dtype=torch.uint8)
            wanted = core.blocks.pages()[:pages]

            def once() -> None:
                core.blocks.read_pages(wanted, payload.numpy(), "fp32")
                ops.restore_kv(payload, runs, *out, *phase, PAGE, "fp32", inv_freq)

            return seconds(once, rounds)

        restore_all, restored = restore(tokens // PAGE), restore(min(RESTORED, tokens) // PAGE)
    megabytes = 2 * k.numel() * k.element_size() / 1e6
    speeds = {"encode_mb_s": megabytes / encoding, "decode_mb_s": megabytes / restore_all, "restore_ms": 1e3 * restored}
    return {"bytes": statistics.fmean(sizes)} | near | speeds


def contexts_of(reader: Reader, tokenizer: Any, count: int, tokens: int, after: int) -> list[Context]:
    books, found = shipped_books(), []
    for i in range(count):
        text = books[i % len(books)].text[-40_000:]
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids[0]
        end = len(ids) - i // len(books) * (tokens + after)
        found.append(reader.prefill(ids[end - tokens - after : end], tokens))
    return found


def measure(model: Any, tokenizer: Any, options: argparse.Namespace) -> dict[str, Any]:
    reader = Reader(model)
    contexts = contexts_of(reader, tokenizer, options.contexts, options.tokens, options.after)
    layers, heads, tokens, dim = contexts[0].k.shape
    rows = {}
    for codec in CODECS:
        rows[codec] = {"bytes": ops.payload_bytes(tokens, PAGE, layers, heads, dim, codec) / tokens}
        rows[codec] |= nearness(reader, with_codec(codec), contexts) | speed(
            codec, contexts[0], reader.rope, options.rounds
        )
        print(f"{codec} is measured", file=sys.stderr, flush=True)
    for quality in options.quality:
        name = f"transform {quality:g}"
        rows[name] = of_transform(reader, tokenizer, quality, contexts, options.rounds)
        print(f"{name} is measured", file=sys.stderr, flush=True)
    base = rows["e4m3"]["restore_ms"]
    for row in rows.values():
        row["restore_of_e4m3"] = row["restore_ms"] / base if base else math.nan
    shape = {"layers": layers, "kv_heads": heads, "head_dim": dim}
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
