"""Whether probabilities can be believed: how often what was called so likely came true."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_BINS = 10


@dataclasses.dataclass(frozen=True)
class Bin:
    """Some probabilities, next to each other."""

    n: int
    said: float  # their mean
    true: float  # how often it came true


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What a reliability diagram shows."""

    n: int
    true: float  # how often it came true, of all
    # The expected calibration error, in bins of equal width and of equal numbers: the mean distance between what was
    # said and what came true over bins of probability, weighted by their members (Guo et al., ICML 2017).
    ece: float
    ece_by_mass: float
    # The area under the ROC curve: the chance that something that came true was called likelier than something that did
    # not, ties a half. None where all or none came true.
    auc: float | None
    bins: tuple[Bin, ...]  # of equal width, without empty ones


def calibration(predicted: Sequence[float], true: Sequence[bool]) -> Calibration:
    """Compare at least one probability with what came true. Raises ValueError without any."""
    p, y = np.asarray(predicted, dtype=np.float64), np.asarray(true, dtype=np.bool_)
    if len(p) == 0:
        raise ValueError("no probabilities: nothing to compare")
    by_width = _bins(p, y, np.minimum((p * _BINS).astype(np.int64), _BINS - 1))
    ranks = np.argsort(np.argsort(p, kind="stable"), kind="stable")
    return Calibration(
        n=len(p),
        true=float(y.mean()),
        ece=_error(by_width),
        ece_by_mass=_error(_bins(p, y, ranks * _BINS // len(p))),
        auc=area_under_curve(p[y], p[~y]),
        bins=by_width,
    )


def area_under_curve(of_true: npt.ArrayLike, of_false: npt.ArrayLike) -> float | None:
    """Return the area by counting, for every pair, which is larger; None without a pair."""
    true, false = np.sort(np.asarray(of_true, np.float64)), np.sort(np.asarray(of_false, np.float64))
    if len(true) == 0 or len(false) == 0:
        return None
    below = np.searchsorted(false, true, side="left") + np.searchsorted(false, true, side="right")
    return float(below.sum() / (2 * len(true) * len(false)))


def _bins(p: npt.NDArray[np.float64], y: npt.NDArray[np.bool_], numbers: npt.NDArray[np.int64]) -> tuple[Bin, ...]:
    found = []
    for number in range(_BINS):
        here = numbers == number
        if here.any():
            found.append(Bin(int(here.sum()), float(p[here].mean()), float(y[here].mean())))
    return tuple(found)


def _error(bins: Sequence[Bin]) -> float:
    return sum(one.n * abs(one.said - one.true) for one in bins) / sum(one.n for one in bins)
