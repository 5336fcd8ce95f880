"""Reading into a memory against plain chunked prefill over the same attention span, in one run.

    python benchmarks/read.py [--model smollm2] [--tokens 4096] [--rounds 3] [--host-bytes 100000000] [--json]

The anchor is transformers alone: the same chunks, over a DynamicCache as long as the frame's sinks and rolling zone,
cropped back after each chunk, so that nothing is archived, indexed or re-based. The ratio is everlong's tokens a second
over the anchor's, by medians of alternating rounds. The memory lies in a temporary folder and has a host budget that
the payload soon fills; what the process grew by at most while it read, over what it had after the anchor's warm-up, is
compared with the frame and that budget.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import everlong
from everlong.data import shipped_books
from everlong.kv_frame import KvFrame
from everlong.machine import processor
from everlong.models import DEFAULT_MODEL, dtype_name, load


def anonymous_bytes() -> int:
    """What this process holds in RAM that is no file's; Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/status has no RssAnon")


class Peak:
    """The most that anonymous_bytes() was while the context was open, looked at every few milliseconds."""

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            self.bytes = max(self.bytes, anonymous_bytes())

    def __enter__(self) -> Peak:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._watch.join()


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
    parser.add_argument("--host-bytes", type=int, default=100_000_000, help="what the memory may keep in RAM")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    model, tokenizer = load(options.model)
    window = model.config.get_text_config().max_position_embeddings
    config = dataclasses.replace(everlong.MemoryConfig.fitting(window), host_bytes=options.host_bytes)
    chunk = config.chunk_tokens
    # Rolling holds M right after an eviction and is read over in between; the anchor sees what it holds then.
    span = config.sink_tokens + config.rolling_tokens
    per_round = options.tokens // chunk * chunk
    ids = torch.tensor(tokenizer(shipped_books()[0].text, add_special_tokens=False, verbose=False)["input_ids"])
    needed = span + 2 * chunk + per_round * options.rounds
    if len(ids) < needed:
        raise SystemExit(f"{needed} tokens are needed, the book has {len(ids)}: fewer --rounds or --tokens")

    ours, anchor = [], []
    anchor_seconds(model, ids[: span + 2 * chunk], span, chunk)
    before = anonymous_bytes()
    with (
        tempfile.TemporaryDirectory() as folder,
        everlong.MemoryModel(model, tokenizer, Path(folder) / "memory.everlong", config) as mm,
    ):
        peak = 0
        mm.frame.extend(ids[: span + 2 * chunk], "read")
        at = span + 2 * chunk
        for _ in range(options.rounds):
            piece = ids[at : at + per_round]
            started = time.perf_counter()
            with Peak() as seen:
                mm.frame.extend(piece, "read")
            ours.append(per_round / (time.perf_counter() - started))
            peak = max(peak, seen.bytes)
            anchor.append(per_round / anchor_seconds(model, piece, span, chunk))
            at += per_round
        assert isinstance(mm.frame, KvFrame)
        frame, stats = mm.frame.bytes.total, mm.memory.stats()
    result = {
        "cpu": processor(),
        "torch": torch.__version__,
        "dtype": dtype_name(model.dtype),
        "chunk_tokens": chunk,
        "span_tokens": span,
        "everlong_tokens_per_second": statistics.median(ours),
        "anchor_tokens_per_second": statistics.median(anchor),
        "grown_bytes": peak - before,
        "frame_bytes": frame,
        "host_bytes": options.host_bytes,
        "payload_bytes": stats.payload_bytes,
        "payload_in_ram": stats.host_bytes,
        "index_bytes": stats.index_bytes,
    }
    result["ratio"] = result["everlong_tokens_per_second"] / result["anchor_tokens_per_second"]
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
        f"{stats.payload_bytes / 1e6:,.1f}, of it in RAM {stats.host_bytes / 1e6:,.1f}, indexes "
        f"{stats.index_bytes / 1e6:,.1f} MB"
    )


if __name__ == "__main__":
    main()
