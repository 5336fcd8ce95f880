"""Intervals and errors against published values and numpy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong_lab.eval.ppl import recovered_fraction
from everlong_lab.eval.statistics import mean_and_stderr, mean_interval, rate, wilson_interval


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


def test_scores_have_wilsons_interval_of_their_mean() -> None:
    # z^2 = 3.8415: n = 4 right of 4 gives the lower bound n / (n + z^2), all wrong its mirror image.
    assert mean_interval([1.0] * 4) == pytest.approx((4 / (4 + 3.841459), 1.0), abs=1e-6)
    assert mean_interval([0.0] * 4) == pytest.approx((0.0, 3.841459 / (4 + 3.841459)), abs=1e-6)
    # Newcombe 1998, as above, 1 of 29: the same mean of scores that are no zeros and ones has the same interval.
    assert mean_interval([1.0, *[0.0] * 28]) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert mean_interval([0.25] * 4 + [0.0] * 25) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    with pytest.raises(ValueError, match="nothing"):
        mean_interval([])
    for wrong in (1.1, -0.1, math.nan):
        with pytest.raises(ValueError, match="outside"):
            mean_interval([wrong])


SCORES = st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1.0])


@given(st.lists(SCORES, min_size=1, max_size=120), st.data())
def test_an_interval_holds_the_mean_and_rises_with_every_score(scores: list[float], data: st.DataObject) -> None:
    low, high = mean_interval(scores)
    assert 0.0 <= low <= math.fsum(scores) / len(scores) <= high <= 1.0
    index = data.draw(st.integers(0, len(scores) - 1))
    raised = [*scores[:index], data.draw(SCORES.filter(lambda score: score >= scores[index])), *scores[index + 1 :]]
    higher = mean_interval(raised)
    assert low <= higher[0]
    assert high <= higher[1]


@pytest.mark.parametrize(
    "of_one",
    [
        pytest.param({0.0: 0.98, 0.25: 0.02}, id="one in fifty a little"),
        pytest.param({0.0: 0.9, 0.25: 0.05, 1.0: 0.05}, id="few"),
        pytest.param({0.0: 0.4, 0.5: 0.2, 1.0: 0.4}, id="half"),
        pytest.param({1.0: 0.97, 0.5: 0.03}, id="nearly all"),
    ],
)
def test_nineteen_of_twenty_intervals_hold_what_is_true(of_one: dict[float, float]) -> None:
    draws = np.random.default_rng(0).choice(list(of_one), p=list(of_one.values()), size=(1_000, 80))
    true = sum(score * share for score, share in of_one.items())
    held = [low <= true <= high for low, high in map(mean_interval, draws.tolist())]
    assert sum(held) >= 930  # of 950 expected, three standard deviations


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
