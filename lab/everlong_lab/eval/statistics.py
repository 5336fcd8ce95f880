"""Rates with their uncertainty."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class Rate:
    """A share of right answers with its 95 % Wilson interval."""

    right: int
    n: int
    rate: float
    low: float
    high: float


def rate(outcomes: Iterable[bool]) -> Rate:
    """Count outcomes. Without any outcome the rate is 0 with the interval [0, 1]."""
    counted = list(outcomes)
    right, n = sum(counted), len(counted)
    low, high = wilson_interval(right, n)
    return Rate(right, n, right / n if n else 0.0, low, high)


def wilson_interval(right: float, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the score interval of a binomial proportion (Wilson 1927); z = 1.96 gives 95 %."""
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


def mean_interval(scores: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of scores in [0, 1]: Wilson's, as if the mean were a share of right answers.

    Zeros and ones are the widest spread of scores with that mean. The variance of the scores themselves is no measure:
    many zeros and one small score hardly vary, and their bootstrap is narrower than the interval of zeros alone.
    """
    if not scores:
        raise ValueError("the interval of nothing")
    if not all(0 <= score <= 1 for score in scores):
        raise ValueError("a score lies outside [0, 1]")
    return wilson_interval(math.fsum(scores), len(scores))


def mean_and_stderr(values: Iterable[float]) -> tuple[float, float]:
    """Return mean and standard error of the mean; the error of fewer than two values is infinite."""
    counted = list(values)
    n = len(counted)
    if n == 0:
        raise ValueError("the mean of nothing")
    mean = math.fsum(counted) / n
    if n == 1:
        return mean, math.inf
    variance = math.fsum((value - mean) ** 2 for value in counted) / (n - 1)
    return mean, math.sqrt(variance / n)


def with_stderr(measure: str, values: Iterable[float]) -> dict[str, float]:
    """Return the mean by the measure's name, and its standard error by "... stderr"; 0 for a single value."""
    mean, stderr = mean_and_stderr(values)
    return {measure: mean, f"{measure} stderr": stderr if math.isfinite(stderr) else 0.0}


def figures_of(
    found: Mapping[tuple[str, int], Sequence[object]], measures: Iterable[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return by method and size, as text, `with_stderr` of each measure, which is an attribute of what was found."""
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for (method, size), ones in found.items():
        own = figures.setdefault(method, {}).setdefault(str(size), {})
        for measure in measures:
            own |= with_stderr(measure, (getattr(one, measure) for one in ones))
    return figures


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> float:
    """Return McNemar's exact two-sided p of two answerers of the same questions (1947); 1 where none differs."""
    differing = [one for one, other in zip(first, second, strict=True) if one != other]
    fewer = min(sum(differing), len(differing) - sum(differing))
    below = sum(math.comb(len(differing), count) for count in range(fewer + 1))
    share: float = 2 * below / 2 ** len(differing)
    return min(1.0, share)


def auc(right: npt.ArrayLike, wrong: npt.ArrayLike) -> float:
    """Return the chance that a right one is higher than a wrong one; ties count half. 0.5 where one kind is missing."""
    rows, columns = np.asarray(right, dtype=np.float64)[:, None], np.asarray(wrong, dtype=np.float64)
    if rows.size == 0 or columns.size == 0:
        return 0.5
    return float((rows > columns).mean() + 0.5 * (rows == columns).mean())
