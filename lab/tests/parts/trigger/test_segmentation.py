"""Segmentation metrics against their definitions, by hand and pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from everlong_lab.parts.trigger.measure import depths, equal_lengths, highest
from everlong_lab.parts.trigger.segmentation import f1, half_segment, pk, window_diff
from everlong_lab.parts.trigger.train import average_precision


def cuts(text: str) -> np.ndarray:
    """ "00100": a segment ends behind the third of six units."""
    return np.asarray([c == "1" for c in text])


def test_by_hand() -> None:
    right, found = cuts("00100"), cuts("01000")
    # Units a b c | d e f, found a b | c d e f. k = 6 / 2 / 2 rounded: 2 (of 1.5).
    assert half_segment(right) == 2
    # Pairs ac bd ce df: right says together, apart, apart, together; found apart, apart, together, together.
    assert pk(right, found) == 2 / 4
    assert window_diff(right, found) == 2 / 4
    # One cut too many within a window is no matter for Pk, and one for WindowDiff.
    assert pk(right, cuts("01100"), 2) == 1 / 4
    assert window_diff(right, cuts("01100"), 2) == 2 / 4
    assert f1([right], [cuts("01100")]) == 2 * 1 / 3
    assert pk(right, right) == window_diff(right, right) == 0
    assert f1([right, cuts("1")], [right, cuts("0")]) == 2 * 1 / 3
    assert f1([cuts("00")], [cuts("00")]) == 1


@pytest.mark.parametrize("seed", range(20))
def test_pair_by_pair(seed: int) -> None:
    rng = np.random.default_rng(seed)
    right, found = rng.random(30) < 0.2, rng.random(30) < 0.25
    k = int(rng.integers(1, 6))

    def between(of: np.ndarray, i: int, j: int) -> int:
        return sum(bool(of[unit]) for unit in range(i, j))

    pairs = [(i, i + k) for i in range(31 - k)]
    together = [((between(right, *pair) == 0), (between(found, *pair) == 0)) for pair in pairs]
    assert pk(right, found, k) == pytest.approx(np.mean([a != b for a, b in together]))
    assert window_diff(right, found, k) == pytest.approx(
        np.mean([between(right, *pair) != between(found, *pair) for pair in pairs])
    )


@pytest.mark.parametrize("seed", range(10))
def test_average_precision_is_that_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, right = np.round(rng.normal(size=200), 1), rng.random(200) < 0.2  # many are equal
    assert average_precision(scores, right) == pytest.approx(average_precision_score(right, scores))


def test_what_is_cut() -> None:
    chosen = highest([np.asarray([0.1, 0.9]), np.asarray([0.9, 0.2, 0.3])], 3)
    assert [of.tolist() for of in chosen] == [[False, True], [True, False, True]]
    # 8 units in 4 segments: two units each.
    assert [of.tolist() for of in equal_lengths([cuts("101"), cuts("001")])] == [[False, True, False]] * 2


def test_depth_is_the_climb_on_either_side() -> None:
    # From 1: up to 5 on the left and to 3 on the right. From 2, which stands on a slope: to 3, and on the left nowhere.
    assert depths(np.asarray([4.0, 5, 1, 2, 3, 0])).tolist() == [1, 0, 4 + 2, 1, 0, 3]
