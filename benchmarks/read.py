"""Reading into a memory against plain chunked prefill over the same attention span, in one run.

    python benchmarks/read.py [--model smollm2] [--tokens 4096] [--rounds 3] [--json]

The anchor is transformers alone: the same chunks, over a DynamicCache as long as the frame's sinks and rolling zone,
cropped back after each chunk, so that nothing is archived, indexed or re-based. The ratio is everlong's tokens a second
over the anchor's, by medians of alternating rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
import transformers

import everlong
from everlong.data import shipped_books
from everlong.demo import cpu_name
from everlong.models import DEFAULT_MODEL, load


def anchor_seconds(model: Any, ids: torch.Tensor, span: int, chunk: int) -> float:
    """Seconds to prefill ids [n] in chunks, each over `span` earlier tokens."""
    cache = transformers.DynamicCache(config=model.config)
    with torch.inference_mode():
        model(input_ids=ids[None, :span], past_key_values=cache, use_cache=True, logits_to_keep=1)
        started = time.perf_counter()
        for first in range(0, len(ids) - chunk + 1, chunk):
            piece = ids[None, first : first + chunk]
            model(input_ids=piece, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.crop(-chunk)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    model, tokenizer = load(options.model)
    config = everlong.MemoryConfig.fitting(model.config.get_text_config().max_position_embeddings)
    chunk = config.chunk_tokens
    # Rolling holds M right after an eviction and is read over in between; the anchor sees what it holds then.
    span = config.sink_tokens + config.rolling_tokens
    per_round = options.tokens // chunk * chunk
    ids = torch.tensor(tokenizer(shipped_books()[0].text, add_special_tokens=False, verbose=False)["input_ids"])
    needed = span + 2 * chunk + per_round * options.rounds
    if len(ids) < needed:
        raise SystemExit(f"{needed} tokens are needed, the book has {len(ids)}: fewer --rounds or --tokens")

    ours, anchor = [], []
    with everlong.MemoryModel(model, tokenizer, None, config) as mm:
        mm.frame.extend(ids[: span + 2 * chunk], "read")
        at = span + 2 * chunk
        for _ in range(options.rounds):
            piece = ids[at : at + per_round]
            started = time.perf_counter()
            mm.frame.extend(piece, "read")
            ours.append(per_round / (time.perf_counter() - started))
            anchor.append(per_round / anchor_seconds(model, piece, span, chunk))
            at += per_round
    result = {
        "cpu": cpu_name(),
        "torch": torch.__version__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "chunk_tokens": chunk,
        "span_tokens": span,
        "everlong_tokens_per_second": statistics.median(ours),
        "anchor_tokens_per_second": statistics.median(anchor),
    }
    result["ratio"] = result["everlong_tokens_per_second"] / result["anchor_tokens_per_second"]
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['cpu']}, torch {result['torch']}, {result['dtype']}, chunks of {chunk} over {span} tokens")
    print(f"{'everlong, archived and indexed':34}{result['everlong_tokens_per_second']:8,.0f} tokens/s")
    print(f"{'transformers, nothing kept':34}{result['anchor_tokens_per_second']:8,.0f} tokens/s")
    print(f"{'ratio':34}{result['ratio']:8.2f}")


if __name__ == "__main__":
    main()
