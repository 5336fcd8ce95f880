"""Reading into a memory against plain chunked prefill over the same attention span, in one run.

    python benchmarks/read.py [--model smollm2] [--tokens 4096] [--rounds 3] [--host-bytes 100000000] [--json]

The anchor is transformers alone. It reads the same chunks over a DynamicCache as long as the frame's sinks and rolling
zone. The cache is cropped back after each chunk, so that nothing is archived, indexed or re-based. The ratio is
everlong's tokens a second over the anchor's, by medians of alternating rounds. The memory lies in a temporary folder
and has a host budget that the payload soon fills. The most that the process grew while it read, over what it held after
the anchor's warm-up, is compared with the frame and that budget.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch

import everlong
from everlong.bench.reading import (
    Peak,
    anonymous_bytes,
    baseline_seconds,
    chunk_tokens,
    measure,
    prefilled,
    span_tokens,
    warm_up_tokens,
)
from everlong.data import shipped_books
from everlong.frame.kv_frame import KvFrame
from everlong.models import DEFAULT_MODEL, dtype_name, load
from everlong.models.hardware import processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--host-bytes", type=int, default=100_000_000, help="what the memory may keep in RAM")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    model, tokenizer = load(options.model)
    window = model.config.get_text_config().max_position_embeddings
    config = everlong.MemoryConfig.fitting(window).changed(archive={"host_bytes": options.host_bytes})
    chunk, span, warm_up = chunk_tokens(config), span_tokens(config), warm_up_tokens(config)
    per_round = options.tokens // chunk * chunk
    ids = torch.tensor(tokenizer(shipped_books()[0].text, add_special_tokens=False, verbose=False)["input_ids"])
    needed = warm_up + per_round * options.rounds
    if len(ids) < needed:
        raise SystemExit(f"{needed} tokens are needed, the book has {len(ids)}: fewer --rounds or --tokens")

    cache = prefilled(model, ids[:span])
    baseline_seconds(model, cache, ids[span:warm_up], chunk)
    before, peak = anonymous_bytes(), Peak()
    with (
        tempfile.TemporaryDirectory() as folder,
        everlong.MemoryModel(model, tokenizer, Path(folder) / "memory.everlong", config) as mm,
    ):
        mm.frame.extend(ids[:warm_up], "read")
        reading = measure(mm, cache, ids[warm_up:needed], options.rounds, peak)
        assert isinstance(mm.frame, KvFrame)
        frame, stats = mm.frame.zones.bytes.total, mm.memory.stats()
    result = {
        "cpu": processor(),
        "torch": torch.__version__,
        "dtype": dtype_name(model.dtype),
        "chunk_tokens": chunk,
        "span_tokens": span,
        "everlong_tokens_per_second": reading.everlong_tokens_per_second,
        "anchor_tokens_per_second": reading.anchor_tokens_per_second,
        "grown_bytes": peak.bytes - before,
        "frame_bytes": frame,
        "host_bytes": options.host_bytes,
        "payload_bytes": stats.payload_bytes,
        "payload_in_ram": stats.host_bytes - stats.catalog_bytes,
        "index_bytes": stats.index_bytes,
        "ratio": reading.ratio,
    }
    result["grown_ratio"] = result["grown_bytes"] / (frame + options.host_bytes)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['cpu']}, torch {result['torch']}, {result['dtype']}, chunks of {chunk} over {span} tokens")
    print(f"{'everlong, archived and indexed':34}{result['everlong_tokens_per_second']:8,.0f} tokens/s")
    print(f"{'transformers, nothing kept':34}{result['anchor_tokens_per_second']:8,.0f} tokens/s")
    print(f"{'ratio':34}{result['ratio']:8.2f}")
    print(
        f"grew by at most {result['grown_bytes'] / 1e6:,.1f} MB, frame {frame / 1e6:,.1f} + host budget "
        f"{options.host_bytes / 1e6:,.1f} MB: {result['grown_ratio']:.2f} of it; payload written "
        f"{stats.payload_bytes / 1e6:,.1f}, of it in RAM {result['payload_in_ram'] / 1e6:,.1f}, indexes "
        f"{stats.index_bytes / 1e6:,.1f} MB"
    )


if __name__ == "__main__":
    main()
