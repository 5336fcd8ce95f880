"""Scores of a segmentation: F1, Pk (Beeferman, Berger and Lafferty, 1999), WindowDiff (Pevzner and Hearst, 2002).

A text is a row of n units. `cuts`, [n - 1] bool, say after which units a segment ends; the last unit has no cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Cuts = npt.NDArray[np.bool_]


def f1(right: Sequence[Cuts], found: Sequence[Cuts]) -> float:
    """Return the F1 of all cuts of all texts; 1 where there are none and none was found."""
    hits = sum(int((r & f).sum()) for r, f in zip(right, found, strict=True))
    both = sum(int(r.sum() + f.sum()) for r, f in zip(right, found, strict=True))
    return 2 * hits / both if both else 1.0


def pk(right: Cuts, found: Cuts, k: int | None = None) -> float:
    """Return Pk: how often the two disagree whether units `k` apart lie in one segment. Less is better."""
    k = half_segment(right) if k is None else k
    return _share_of_windows(_within(right, k) > 0, _within(found, k) > 0)


def window_diff(right: Cuts, found: Cuts, k: int | None = None) -> float:
    """Return WindowDiff: how often the two have different numbers of cuts between units `k` apart. Less is better."""
    k = half_segment(right) if k is None else k
    return _share_of_windows(_within(right, k), _within(found, k))


def half_segment(right: Cuts) -> int:
    """Return half the mean length of the right segments, in units, at least 1: the `k` that both are defined with."""
    return max(1, round((len(right) + 1) / (int(right.sum()) + 1) / 2))


def _within(cuts: Cuts, k: int) -> npt.NDArray[np.int64]:
    """Return the number of cuts between units i and i + k, for every such pair."""
    before: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum(cuts)]).astype(np.int64)
    return before[k:] - before[: max(0, len(before) - k)]


def _share_of_windows(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> float:
    return float((one != other).mean()) if len(one) else 0.0
