"""Rates with their uncertainty."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Rate:
    """A share of right answers with its 95 % Wilson interval."""

    right: int
    n: int
    rate: float
    low: float
    high: float


def rate(outcomes: Iterable[bool]) -> Rate:
    """Count outcomes. No outcome at all gives a rate of 0 with the interval [0, 1]."""
    counted = list(outcomes)
    right, n = sum(counted), len(counted)
    low, high = wilson_interval(right, n)
    return Rate(right, n, right / n if n else 0.0, low, high)


def wilson_interval(right: float, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Score interval of a binomial proportion (Wilson 1927); z = 1.96 gives 95 %."""
    if not 0 <= right <= n:
        raise ValueError(f"{right} right of {n}")
    if n == 0:
        return 0.0, 1.0
    share = right / n
    scale = 1 + z * z / n
    middle = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends the bound is exact; rounding must not push it over.
    return (0.0 if right == 0 else middle - half), (1.0 if right == n else middle + half)


# Scores below which the bootstrap is not asked.
_FEWEST_RESAMPLED = 20


def mean_interval(scores: Sequence[float], resamples: int = 2_000, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean of scores in [0, 1]: Wilson's for few of them or zeros and ones, else the bootstrap's.

    A bootstrap of few scores, or of scores that are all alike, hardly varies and is far too narrow. Wilson's interval
    of their mean is not: no spread of scores in [0, 1] with that mean exceeds that of zeros and ones.
    """
    if not scores:
        raise ValueError("the interval of nothing")
    values = np.asarray(scores, dtype=np.float64)
    if np.any((values < 0) | (values > 1)):
        raise ValueError("a score lies outside [0, 1]")
    if len(values) < _FEWEST_RESAMPLED or set(scores) <= {0.0, 1.0} or np.ptp(values) == 0:
        return wilson_interval(float(values.sum()), len(values))
    picks = np.random.default_rng(seed).integers(len(values), size=(resamples, len(values)))
    low, high = np.quantile(values[picks].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def mean_and_stderr(values: Iterable[float]) -> tuple[float, float]:
    """Mean and standard error of the mean; the error of fewer than two values is infinite."""
    counted = list(values)
    n = len(counted)
    if n == 0:
        raise ValueError("the mean of nothing")
    mean = math.fsum(counted) / n
    if n == 1:
        return mean, math.inf
    variance = math.fsum((value - mean) ** 2 for value in counted) / (n - 1)
    return mean, math.sqrt(variance / n)
