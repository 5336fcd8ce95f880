"""Losses by the distance of their tokens from the place that is scored."""

from __future__ import annotations

import math

from everlong_lab.eval.statistics import mean_and_stderr
from everlong_lab.pictures.position import BIN_TOKENS


def means_by_position(losses: list[list[float]]) -> list[float]:
    """Return the mean over places of the losses of each BIN_TOKENS tokens; an incomplete last bin is left out."""
    bins = min(len(nll) for nll in losses) // BIN_TOKENS
    return [
        mean_and_stderr(math.fsum(nll[n * BIN_TOKENS : (n + 1) * BIN_TOKENS]) / BIN_TOKENS for nll in losses)[0]
        for n in range(bins)
    ]
