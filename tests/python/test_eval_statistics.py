"""Intervals and errors against published values and numpy."""

import itertools
import math

import numpy as np
import pytest

from everlong.eval.ppl import recovered_fraction
from everlong.eval.statistics import mean_and_stderr, mean_interval, rate, wilson_interval


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [
        # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3 (score, without continuity correction)
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_interval_as_published(right: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(right, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_interval_is_symmetric_and_holds_the_rate() -> None:
    for n in (1, 2, 10, 60):
        for right in range(n + 1):
            low, high = wilson_interval(right, n)
            assert 0.0 <= low <= right / n <= high <= 1.0
            mirrored = wilson_interval(n - right, n)
            assert (1 - high, 1 - low) == pytest.approx(mirrored)


def test_wilson_interval_without_trials_knows_nothing_and_refuses_nonsense() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 right of 2"):
        wilson_interval(3, 2)


def test_rate_counts() -> None:
    counted = rate([True, False, True, True])
    assert (counted.right, counted.n, counted.rate) == (3, 4, 0.75)
    assert (counted.low, counted.high) == wilson_interval(3, 4)
    assert rate([]).rate == 0.0


def test_few_scores_have_wilsons_interval_of_their_mean() -> None:
    # z^2 = 3.8415: n = 4 right of 4 gives the lower bound n / (n + z^2), all wrong its mirror image.
    assert mean_interval([1.0] * 4) == pytest.approx((4 / (4 + 3.841459), 1.0), abs=1e-6)
    assert mean_interval([0.0] * 4) == pytest.approx((0.0, 3.841459 / (4 + 3.841459)), abs=1e-6)
    # Newcombe 1998, as above, 1 of 29: the same mean of scores that are no zeros and ones has the same interval.
    assert mean_interval([1.0, *[0.0] * 28]) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert mean_interval([0.5, 0.5, 1.0, 0.0]) == pytest.approx(wilson_interval(2, 4))
    with pytest.raises(ValueError, match="nothing"):
        mean_interval([])
    with pytest.raises(ValueError, match="outside"):
        mean_interval([1.1])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 10, 19])
def test_an_interval_of_few_scores_holds_their_mean_and_rises_with_it(n: int) -> None:
    rng = np.random.default_rng(n)
    drawn = sorted((sorted(rng.uniform(size=n).round(2)) for _ in range(50)), key=sum)
    found = [mean_interval([float(score) for score in scores]) for scores in ([0.0] * n, *drawn, [1.0] * n)]
    for scores, (low, high) in zip(drawn, found[1:-1], strict=True):
        assert 0.0 <= low <= np.mean(scores) <= high <= 1.0
    for (low, high), (next_low, next_high) in itertools.pairwise(found):
        assert low <= next_low + 1e-12
        assert high <= next_high + 1e-12
    assert mean_interval([0.9, *[1.0] * (n - 1)])[0] < mean_interval([1.0] * n)[0], "one score lower, not narrower"


def test_many_scores_have_the_bootstraps_interval() -> None:
    """Against the normal approximation, which many scores come near to."""
    scores = np.random.default_rng(0).uniform(0.2, 0.8, size=400)
    low, high = mean_interval(scores.tolist())
    half = 1.96 * scores.std() / math.sqrt(len(scores))
    assert (low, high) == pytest.approx((scores.mean() - half, scores.mean() + half), abs=0.1 * half)
    assert high - low < np.diff(wilson_interval(float(scores.sum()), len(scores)))[0], "narrower: the scores are alike"


def test_mean_and_stderr_as_numpy() -> None:
    values = np.random.default_rng(0).normal(size=17)
    mean, error = mean_and_stderr(values.tolist())
    assert mean == pytest.approx(values.mean())
    assert error == pytest.approx(values.std(ddof=1) / math.sqrt(17))
    assert mean_and_stderr([2.0]) == (2.0, math.inf)
    with pytest.raises(ValueError, match="nothing"):
        mean_and_stderr([])


def test_recovered_fraction_is_a_ratio_of_means_with_its_jackknife_error() -> None:
    rng = np.random.default_rng(1)
    full = rng.uniform(0.1, 0.3, size=9)
    memory = full * rng.uniform(0.4, 1.1, size=9)
    found = recovered_fraction(list(zip(memory.tolist(), full.tolist(), strict=True)))
    left_out = np.array([np.delete(memory, i).mean() / np.delete(full, i).mean() for i in range(9)])
    assert found["mean"] == pytest.approx(memory.mean() / full.mean())
    assert found["stderr"] == pytest.approx(math.sqrt(8 / 9 * ((left_out - left_out.mean()) ** 2).sum()))


def test_recovered_fraction_is_none_where_it_is_not_defined() -> None:
    assert recovered_fraction([(0.1, -0.2), (0.1, 0.1)]) == {"mean": None, "stderr": None}
    assert recovered_fraction([(0.1, 0.2)]) == {"mean": 0.5, "stderr": None}
