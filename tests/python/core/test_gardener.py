"""The Gardener beside a plain model of it, and beside scikit-learn's streaming clusterings."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.stateful
import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from sklearn.cluster import Birch, MiniBatchKMeans
from sklearn.metrics import normalized_mutual_info_score

import everlong
import everlong._core as _core
from support.examples import examples

GRID = 2.0**22


def exact_sums(vectors: list[npt.NDArray[np.float32]]) -> tuple[int, list[int], int]:
    """Count, linear sum and square sum as whole numbers of the grid: Python's are exact."""
    linear, square = [0] * len(vectors[0]), 0
    for vector in vectors:
        steps = [round(float(value) * GRID) for value in vector.astype(np.float64)]
        linear = [a + b for a, b in zip(linear, steps, strict=True)]
        of_one = 0.0
        for step in steps:
            of_one += (step / GRID) * (step / GRID)
        square += round(of_one * GRID)
    return len(vectors), linear, square


def sums_of(centre: Any) -> tuple[int, list[int], int]:
    return centre.count, [int(value * GRID) for value in centre.linear], int(centre.square * GRID)


DIMENSION = 3
numbers = st.floats(-4, 4, width=32)
vectors = st.lists(numbers, min_size=DIMENSION, max_size=DIMENSION)


class GardenerMachine(hypothesis.stateful.RuleBasedStateMachine):
    """Adds, forgets: whatever was split and merged, every centre has exactly the sums of the blocks below it."""

    @hypothesis.stateful.initialize(radius=st.sampled_from([0.0, 0.5, 2.0]), full=st.sampled_from([4, 9, 4096]))
    def begin(self, radius: float, full: int) -> None:
        self.vectors: dict[int, npt.NDArray[np.float32]] = {}
        self.next = 1
        self.full = full
        self.gardener = _core.Gardener(DIMENSION, radius=radius, most_members=full, looked_at=6, levels=3)

    @hypothesis.stateful.rule(vector=vectors)
    def add(self, vector: list[float]) -> None:
        self.vectors[self.next] = np.array(vector, dtype=np.float32)
        self.gardener.add(np.array([self.next]), self.vectors[self.next][None])
        self.next += 1

    @hypothesis.stateful.rule(data=st.data(), times=st.integers(2, 12))
    def add_again(self, data: st.DataObject, times: int) -> None:
        """What is there already, so that centres become full."""
        if self.vectors:
            block = data.draw(st.sampled_from(sorted(self.vectors)))
            for _ in range(times):
                self.add(self.vectors[block].tolist())

    @hypothesis.stateful.rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        if self.vectors:
            block = data.draw(st.sampled_from(sorted(self.vectors)))
            self.gardener.forget(block)
            del self.vectors[block]
            assert self.gardener.centre_of(block) is None

    @hypothesis.stateful.rule()
    def forget_half(self) -> None:
        for block in list(self.vectors)[::2]:
            self.gardener.forget(block)
            del self.vectors[block]

    @hypothesis.stateful.invariant()
    def every_sum_is_that_of_a_fresh_build(self) -> None:
        if not hasattr(self, "gardener"):
            return
        below: dict[int, list[int]] = {}
        members_of_level: dict[int, list[int]] = {}
        for centre in self.gardener.centres():
            assert 1 <= len(centre.members) <= max(self.full, 4)
            if centre.level == 0:
                below[centre.id] = list(centre.members)
                assert all(self.gardener.centre_of(block) == centre.id for block in centre.members)
            else:
                below[centre.id] = [block for member in centre.members for block in below[member]]
            members_of_level.setdefault(centre.level, []).extend(centre.members)
            assert sums_of(centre) == exact_sums([self.vectors[block] for block in below[centre.id]])
        for level in range(3):
            members = members_of_level.get(level, [])
            expected = (
                sorted(self.vectors)
                if level == 0
                else sorted(centre.id for centre in self.gardener.centres() if centre.level == level - 1)
            )
            assert sorted(members) == expected


TestGardenerMachine = GardenerMachine.TestCase
TestGardenerMachine.settings = examples(60, stateful_step_count=40)


def drifting_mixture(
    blocks: int, topics: int, dimension: int, apart: float, seed: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Gaussians of deviation 1 around means of deviation `apart`, which come one after the other and overlap in time.

    Scaled to lengths around 1.
    """
    random = np.random.default_rng(seed)
    means = random.normal(0, apart, (topics, dimension))
    when = np.sort(random.uniform(0, topics, blocks))
    truth = np.clip(np.floor(when + random.normal(0, 0.7, blocks)), 0, topics - 1).astype(np.int64)
    points = means[truth] + random.normal(0, 1, (blocks, dimension))
    return (points / np.sqrt((points**2).sum(1).mean())).astype(np.float32), truth


def gardened(points: npt.NDArray[np.float32], **options: Any) -> list[int | None]:
    gardener = _core.Gardener(points.shape[1], **options)
    gardener.add(np.arange(1, len(points) + 1), points)
    return [gardener.centre_of(block) for block in range(1, len(points) + 1)]


@pytest.mark.parametrize(
    ("topics", "dimension", "apart", "share"), [(12, 8, 4.0, 0.3), (40, 32, 2.5, 0.4), (100, 64, 2.5, 0.4)]
)
@pytest.mark.parametrize("order", ["drifting", "shuffled"])
@pytest.mark.filterwarnings("ignore:Number of subclusters")  # in Birch's first batches
def test_topics_are_found_as_well_as_by_scikit_learn(
    topics: int, dimension: int, apart: float, share: float, order: str
) -> None:
    """Which are told how many topics there are; the Gardener is not. Birch has the same radius from the beginning."""
    points, truth = drifting_mixture(6000, topics, dimension, apart, seed=topics)
    if order == "shuffled":
        shuffled = np.random.default_rng(1).permutation(len(points))
        points, truth = points[shuffled], truth[shuffled]
    spread = float(np.sqrt(((points - points.mean(0)) ** 2).sum(1).mean()))
    ours = normalized_mutual_info_score(truth, gardened(points, share=share))
    birch = Birch(threshold=share * spread, n_clusters=topics)
    k_means = MiniBatchKMeans(topics, random_state=0, n_init=1, batch_size=256)
    for first in range(0, len(points), 256):  # as a stream, in the order in which they come
        birch.partial_fit(points[first : first + 256])
        if first + 256 <= len(points):
            k_means.partial_fit(points[first : first + 256])
    assert ours >= normalized_mutual_info_score(truth, birch.predict(points)) - 0.02
    assert ours >= normalized_mutual_info_score(truth, k_means.predict(points)) - 0.02


def test_the_order_of_arrival_changes_little() -> None:
    points, truth = drifting_mixture(6000, 40, 32, 2.5, seed=7)
    scores = []
    for order in (np.arange(6000), *(np.random.default_rng(seed).permutation(6000) for seed in range(3))):
        scores.append(normalized_mutual_info_score(truth[order], gardened(points[order], share=0.4)))
    assert max(scores) - min(scores) <= 0.02


def test_the_same_seed_gives_the_same_topics() -> None:
    points, _ = drifting_mixture(3000, 20, 16, 1.0, seed=3)
    assert gardened(points, share=0.4, seed=5, looked_at=32) == gardened(points, share=0.4, seed=5, looked_at=32)


def test_a_search_that_looks_at_few_centres_finds_what_all_of_them_find() -> None:
    """Of more than `looked_at` centres the nearest lists of them are looked at; topics are as good."""
    points, truth = drifting_mixture(6000, 100, 32, 2.5, seed=4)
    flat = normalized_mutual_info_score(truth, gardened(points, share=0.4, looked_at=10_000))
    few = normalized_mutual_info_score(truth, gardened(points, share=0.4, looked_at=16))
    assert few >= flat - 0.02


def test_what_cannot_be_placed_is_refused() -> None:
    gardener = _core.Gardener(4)
    with pytest.raises(ValueError, match="length"):
        gardener.add(np.array([1]), np.full((1, 4), 100, dtype=np.float32))
    with pytest.raises(ValueError, match="length"):
        gardener.add(np.array([1]), np.full((1, 4), np.nan, dtype=np.float32))
    with pytest.raises(everlong.errors.MemoryNotFoundError):
        gardener.forget(1)
    assert gardener.centres() == []
    for wrong in ({"levels": 0}, {"share": 0.0}, {"share": 2.0}, {"growth": 0.9}, {"radius": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            _core.Gardener(4, **wrong)
