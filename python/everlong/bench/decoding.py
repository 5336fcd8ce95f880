"""Decoding over a frame against transformers' own decoding, by how much the memory holds.

The anchor of the same run is the same model over a DynamicCache of as many tokens as the frame attends to, token by
token.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from everlong.bench.clock import now
from everlong.generation.memory_model import MemoryModel
from everlong.models.releases import cache_argument


@dataclasses.dataclass(frozen=True)
class DecodingCost:
    """Speeds as medians over tokens."""

    memory_tokens: int
    frame_tokens: int  # that a token attends to, for everlong and for the anchor
    everlong_tokens_per_second: float
    anchor_tokens_per_second: float
    ratio: float  # everlong's speed over the anchor's


def resident_tokens(mm: MemoryModel) -> int:
    """Return how many tokens a token attends to."""
    return mm.frame.zones.resident_tokens


def frame_seconds(mm: MemoryModel, ids: torch.Tensor) -> list[float]:
    """Return the seconds of each token of ids [n], fed one by one and forgotten again."""
    device = mm.model.device
    seconds = []
    with mm.frame.branch():
        for token in ids:
            started = now(device)
            mm.frame.extend(token[None], "generated")
            seconds.append(now(device) - started)
    return seconds


@torch.no_grad()  # as transformers' generate
def baseline_seconds(model: Any, ids: torch.Tensor, length: int) -> list[float]:
    """Return the same behind a DynamicCache that holds the first `length` of ids already."""
    ids = ids.to(model.device)
    cache = transformers.DynamicCache(config=model.config)
    arguments = {cache_argument(model): cache}
    model(input_ids=ids[None, :length], **arguments, use_cache=True, logits_to_keep=1)
    seconds = []
    for token in ids[length:]:
        started = now(model.device)
        model(input_ids=token[None, None], **arguments, use_cache=True, logits_to_keep=1)
        seconds.append(now(model.device) - started)
    return seconds


def measure(
    memories: Sequence[tuple[int, MemoryModel]], ids: torch.Tensor, tokens: int, rounds: int
) -> list[DecodingCost]:
    """Measure each memory of one model in rounds of `tokens` tokens; return a row for each.

    Each is given with how many tokens it holds. They take turns, upwards and downwards, so that a machine that gets
    faster or slower does so for each. ids [n] are at least `tokens` more than any frame attends to.
    """
    ours: list[list[float]] = [[] for _ in memories]
    anchor: list[list[float]] = [[] for _ in memories]
    turns = list(range(len(memories)))
    for _ in range(rounds):
        turns.reverse()
        for number in turns:
            mm = memories[number][1]
            length = resident_tokens(mm)
            ours[number] += frame_seconds(mm, ids[:tokens])
            anchor[number] += baseline_seconds(mm.model, ids[: length + tokens], length)
    return [
        DecodingCost(held, resident_tokens(mm), 1 / mine, 1 / theirs, theirs / mine)
        for (held, mm), mine, theirs in zip(
            memories, map(statistics.median, ours), map(statistics.median, anchor), strict=True
        )
    ]
