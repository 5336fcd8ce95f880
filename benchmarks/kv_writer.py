"""What the KV writer costs a reading: CPU time of what it makes of a block and of a span, beside the model's own.

    python benchmarks/kv_writer.py [--model smollm2] [--block 512] [--share 8] [--span 256] [--rounds 5]

It times these on one thread, with tensors of the right shapes:

- a payload as it is stored with a block, with the writer and of the tokens' own keys and values;
- the slot of a tombstone;
- a forward pass of a block without anything before it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from everlong.frame.kept_tokens import kept_bytes, kept_rows
from everlong.frame.part import Span
from everlong.models import DEFAULT_MODEL, load
from everlong.models.hardware import processor
from everlong.models.pack import pack_of_model
from everlong.parts.kv_writer.model import KV_WRITER, KvWriterNet
from everlong.parts.kv_writer.runtime import KvWriterRuntime
from everlong.parts.trimmer.model import TRIMMER


def cpu_seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the CPU seconds of one call, after another that warms up."""
    work()
    begun = time.process_time()
    for _ in range(rounds):
        work()
    return (time.process_time() - begun) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--block", type=int, default=512, help="tokens of a block")
    parser.add_argument("--share", type=int, default=8, help="one token of this many is chosen")
    parser.add_argument("--span", type=int, default=256, help="tokens that a tombstone stands for")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    model, _ = load(options.model)
    pack = pack_of_model(model, "auto")
    if not {KV_WRITER, TRIMMER} <= set(pack.parts):
        raise SystemExit(f"{options.model} has no pack with a Trimmer and a KV writer")
    config = KvWriterNet.of_part(pack.parts[KV_WRITER]).settings
    writer = KvWriterRuntime(pack, torch.device("cpu"), frozenset({"kept", "tombstone"}))
    tokens = options.block
    layers = writer.needs.hidden_layers
    hidden = {layer: torch.randn(tokens, config.reader.hidden_size, dtype=torch.bfloat16) for layer in layers}
    k, v = torch.randn(2, config.kv_layers, config.kv_heads, tokens, config.head_dim)
    anchors = torch.randperm(tokens)[: tokens // options.share].sort().values
    ids = torch.randint(model.config.vocab_size, (1, tokens))
    block = Span(0, ids[0], hidden, lambda: (k, v), anchors)
    left = slice(0, options.span)
    of_span = {layer: rows[left] for layer, rows in hidden.items()}
    span, rows_of_span = Span(0, ids[0, left], of_span, lambda: rows_of_span), (k[:, :, left], v[:, :, left])

    def payload(by: KvWriterRuntime | None) -> Callable[[], object]:
        return lambda: kept_bytes(kept_rows(by, block), page_tokens=64, codec="e4m3")

    rows: dict[str, Callable[[], object]] = {
        f"payload of {len(anchors)} of {tokens} tokens by the KV writer": payload(writer),
        "the same of the tokens' own": payload(None),
        f"tombstone of {options.span} tokens": lambda: writer.write_evicted(span, rows_of_span),
        f"forward of {tokens} tokens": lambda: model(ids, logits_to_keep=1),
    }
    print(f"{processor()}, torch {torch.__version__}, {str(model.dtype).removeprefix('torch.')}, CPU time, one thread")
    for name, work in rows.items():
        print(f"{name}: {1000 * cpu_seconds(work, options.rounds):.1f} ms", flush=True)


if __name__ == "__main__":
    main()
