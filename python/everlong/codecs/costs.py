"""What each codec of the archive costs a model: bytes of a token, and how far what it says is from the exact cache's.

Contexts of the ends of the shipped books are coded and decoded, but for their first tokens and their newest, and the
book goes on behind them. The transform is fitted to the beginnings.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import torch

import everlong._core as _core
from everlong.codecs.coded_context import CodedContext, through_memory
from everlong.codecs.transform import QUALITY, STEPS, LogFn, fit_bases
from everlong.data import shipped_books
from everlong.models.attach import AttachedModel, attach
from everlong.models.provenance import provenance

# The core's, largest first, without fp32 and without those that are kept for older memories alone.
CODECS = tuple(
    codec.name
    for codec in sorted(_core.codecs(), key=lambda codec: -codec.key_bits - codec.value_bits)
    if codec.name != "fp32" and not codec.name.endswith("-plain")
)


@dataclasses.dataclass(frozen=True)
class CodecCost:
    """Means over contexts."""

    codec: str
    bytes: float  # of a token, in all layers
    kl: float  # nats a token
    nats_lost: float  # a token
    same_token: float  # share of tokens whose likeliest next token is the same

    @property
    def nothing(self) -> bool:
        """Whether it costs next to nothing: a transform of this KL is what `compact` makes without a quality."""
        return self.kl <= QUALITY


@dataclasses.dataclass(frozen=True)
class CodecReport:
    """What every codec costs a model."""

    model: str
    codecs: tuple[CodecCost, ...]
    cheapest: CodecCost | None  # of those that cost next to nothing
    made_with: dict[str, Any]  # everlong.models.provenance


def contexts_of(
    served: AttachedModel, tokenizer: Any, count: int, tokens: int = 1024, after: int = 192
) -> list[CodedContext]:
    """Read contexts by turns from the ends of the shipped books."""
    books, found = shipped_books(), []
    for number in range(count):
        text = books[number % len(books)].text[-40_000:]
        ids = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=torch.int64)
        end = len(ids) - number // len(books) * (tokens + after)
        found.append(CodedContext.read(served, ids[end - tokens - after : end], tokens))
    return found


def cost(contexts: Sequence[CodedContext], codec: str, tables: bytes | None = None, *, weights: str = "") -> CodecCost:
    """Return what a codec costs; what a transform costs where there are `tables`, of the model with these weights."""
    found, sizes = [], []
    for context in contexts:
        k, v, size = through_memory(context.k, context.v, codec, tables, weights=weights)
        found.append(context.nearness(k, v))
        sizes.append(size)
    return CodecCost(
        codec,
        statistics.fmean(sizes),
        statistics.fmean(one.kl for one in found),
        statistics.fmean(one.nats_lost for one in found),
        statistics.fmean(one.same_token for one in found),
    )


def measure(
    model: Any, tokenizer: Any, *, name: str = "", contexts: int = 4, tokens: int = 1024, log: LogFn = lambda _: None
) -> CodecReport:
    """Measure each codec, then the transform at each step, from the coarsest on."""
    served = attach(model, tokens)
    judged = contexts_of(served, tokenizer, contexts, tokens)
    costs = []
    for codec in CODECS:
        log(codec)
        costs.append(cost(judged, codec))
    fit = fit_bases(model, tokenizer, log=log)
    for step in STEPS:
        log(f"step {step:g} of the transform")
        costs.append(cost(judged, f"transform, step {step:g}", fit.tables(step), weights=fit.weights))
    return CodecReport(name, tuple(costs), cheapest(costs), provenance(model))


def cheapest(costs: Sequence[CodecCost]) -> CodecCost | None:
    """Return the smallest that costs next to nothing; None where each costs something."""
    return min((one for one in costs if one.nothing), key=lambda one: one.bytes, default=None)
