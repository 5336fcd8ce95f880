"""How near a segmentation is to the right one: F1, Pk (Beeferman, Berger and Lafferty, 1999) and WindowDiff (Pevzner
and Hearst, 2002).

A text is a row of units, and `cuts` say behind which of its units but the last one a segment ends: [n - 1] bool.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Cuts = npt.NDArray[np.bool_]


def f1(right: Sequence[Cuts], found: Sequence[Cuts]) -> float:
    """Of all cuts of all texts; 1 where there are none and none was found."""
    hits = sum(int((r & f).sum()) for r, f in zip(right, found, strict=True))
    both = sum(int(r.sum() + f.sum()) for r, f in zip(right, found, strict=True))
    return 2 * hits / both if both else 1.0


def pk(right: Cuts, found: Cuts, k: int | None = None) -> float:
    """Of pairs of units `k` apart, the share that is in one segment by one and in two by the other. Less is better."""
    k = half_segment(right) if k is None else k
    return _share_of_windows(_within(right, k) > 0, _within(found, k) > 0)


def window_diff(right: Cuts, found: Cuts, k: int | None = None) -> float:
    """Of such pairs, the share between which the two have not as many cuts. Less is better."""
    k = half_segment(right) if k is None else k
    return _share_of_windows(_within(right, k), _within(found, k))


def half_segment(right: Cuts) -> int:
    """Half the mean length of its segments, in units: the `k` that both are defined with; at least 1."""
    return max(1, round((len(right) + 1) / (int(right.sum()) + 1) / 2))


def _within(cuts: Cuts, k: int) -> npt.NDArray[np.int64]:
    """How many cuts lie between units i and i + k, of every such pair."""
    before: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum(cuts)]).astype(np.int64)
    return before[k:] - before[: max(0, len(before) - k)]


def _share_of_windows(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> float:
    return float((one != other).mean()) if len(one) else 0.0
