"""Reading into a memory against plain chunked prefill over the same attention span, in one run.

The anchor is transformers alone. It reads the same chunks over a DynamicCache as long as the frame's sinks and rolling
zone. The cache is put back after each chunk, so that nothing is archived, indexed or re-based.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import statistics
import threading
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from everlong.bench.clock import now
from everlong.config import MemoryConfig
from everlong.generation.memory_model import MemoryModel
from everlong.models.releases import cache_argument


@dataclasses.dataclass(frozen=True)
class ReadingCost:
    """Speeds as medians of rounds that took turns."""

    tokens: int  # timed tokens of all rounds
    chunk_tokens: int
    span_tokens: int  # that the anchor's chunks attend to beside themselves
    everlong_tokens_per_second: float
    anchor_tokens_per_second: float
    ratio: float  # everlong's speed over the anchor's


def anonymous_bytes() -> int:
    """Return the bytes of RAM of this process that belong to no file. Linux only; raises RuntimeError elsewhere."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/status has no RssAnon")


class Peak:
    """The peak of anonymous_bytes() while the context is open, sampled every few milliseconds.

    It may be opened again, and goes on from the peak so far.
    """

    def __init__(self) -> None:
        self.bytes = 0

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(0.005):
            self.bytes = max(self.bytes, anonymous_bytes())

    def __enter__(self) -> Peak:
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._run, args=(self._stop,), daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._watch.join()


def chunk_tokens(config: MemoryConfig) -> int:
    """Return the tokens of a forward pass: no more than a small frame has room for."""
    return min(config.frame.chunk_tokens, config.frame.tokens - config.front_tokens - config.frame.rolling_tokens)


def span_tokens(config: MemoryConfig) -> int:
    """Return how many tokens the anchor attends to.

    The rolling zone holds M tokens right after an eviction, and grows in between.
    """
    return config.frame.sink_tokens + config.frame.rolling_tokens


def warm_up_tokens(config: MemoryConfig) -> int:
    """Return the tokens that both read before the timing: the span, and two chunks over it."""
    return span_tokens(config) + 2 * chunk_tokens(config)


@torch.inference_mode()
def prefilled(model: Any, ids: torch.Tensor) -> DynamicCache:
    """Return the anchor's cache of ids [n], from one forward pass."""
    cache = DynamicCache(config=model.config)
    model(input_ids=ids[None].to(model.device), **{cache_argument(model): cache}, use_cache=True, logits_to_keep=1)
    return cache


@torch.inference_mode()
def baseline_seconds(model: Any, cache: DynamicCache, ids: torch.Tensor, chunk: int) -> float:
    """Return the seconds to prefill ids [n] in chunks, each over what the cache holds. The cache is the same
    afterwards.
    """
    ids = ids.to(model.device)
    # A sliding window or a linear state that has gone on cannot be cropped. A copy goes on instead; making it is not
    # timed.
    croppable = all(type(layer) is DynamicLayer for layer in cache.layers)
    seconds = 0.0
    for first in range(0, len(ids) - chunk + 1, chunk):
        piece = ids[None, first : first + chunk]
        resident = cache if croppable else copy.deepcopy(cache)
        started = now(model.device)
        model(input_ids=piece, **{cache_argument(model): resident}, use_cache=True, logits_to_keep=1)
        if croppable:
            cache.crop(-chunk)
        seconds += now(model.device) - started
    return seconds


def measure(
    mm: MemoryModel,
    cache: DynamicCache,
    ids: torch.Tensor,
    rounds: int,
    watch: contextlib.AbstractContextManager[object] | None = None,
) -> ReadingCost:
    """Read ids [n * rounds], the next of the stream, in rounds of n tokens, a multiple of `frame.chunk_tokens`.

    `cache` holds the anchor's span; both have read `warm_up_tokens` before. `watch` is opened anew around everlong's
    part of each round.
    """
    chunk, device = chunk_tokens(mm.config), mm.model.device
    ours, anchor = [], []
    for piece in ids.tensor_split(rounds):
        started = now(device)
        with contextlib.nullcontext() if watch is None else watch:
            mm.frame.extend(piece, "read")
        ours.append(len(piece) / (now(device) - started))
        anchor.append(len(piece) / baseline_seconds(mm.model, cache, piece, chunk))
    mine, theirs = statistics.median(ours), statistics.median(anchor)
    return ReadingCost(len(ids), chunk, cache.get_seq_length(), mine, theirs, mine / theirs)
