"""everlong.index against numpy in fp64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import everlong
from everlong.retrieval.index import FlatIndex, HnswIndex, Metric, NeuralInvertedIndex, Router, VectorIndex

KINDS = [FlatIndex, HnswIndex, NeuralInvertedIndex]


def scores_of(queries: np.ndarray, vectors: np.ndarray, metric: Metric) -> np.ndarray:
    """[queries, vectors] by definition."""
    q, v = queries.astype(np.float64), vectors.astype(np.float64)
    if metric == "l2":
        return -((q[:, None] - v[None]) ** 2).sum(-1)
    if metric == "cosine":
        q, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, v))
    return q @ v.T


@given(
    st.sampled_from(KINDS),
    st.sampled_from(["inner_product", "cosine", "l2"]),
    st.integers(1, 40),
    st.integers(0, 60),
    st.integers(1, 70),
    st.integers(0, 1000),
)
def test_the_nearest_are_found(
    kind: type[VectorIndex], metric: Metric, dimension: int, count: int, k: int, seed: int
) -> None:
    """Below `exact_below` the graph index is exact too."""
    rng = np.random.default_rng(seed)
    index = kind(dimension, metric)  # type: ignore[call-arg, arg-type]
    vectors = rng.standard_normal((count, dimension)).astype(np.float32)
    ids = rng.permutation(1000)[:count]
    index.add(ids, vectors)
    gone = ids[: count // 3]
    assert index.remove(gone) == len(gone) == count - len(index)
    allowed = rng.random(900) < 0.5
    kept = np.array([i for i, id in enumerate(ids) if id not in gone and id < 900 and allowed[id]], dtype=int)
    queries = rng.standard_normal((3, dimension)).astype(np.float32)
    hits = index.search(queries, k, allowed)
    scores = scores_of(queries, vectors[kept], metric)
    for row in range(3):
        order = np.argsort(-scores[row], kind="stable")[:k]
        np.testing.assert_allclose(hits.scores[row, : len(order)], scores[row, order], rtol=1e-5, atol=1e-6)
        assert set(hits.ids[row, : len(order)]) <= set(ids[kept])
        assert (hits.ids[row, len(order) :] == -1).all()
        assert np.isneginf(hits.scores[row, len(order) :]).all()


@pytest.mark.parametrize("storage", ["bf16", "int8", "e4m3"])
def test_smaller_storage_loses_little(storage) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((2000, 64)).astype(np.float32)
    index = FlatIndex(64, storage=storage)
    index.add(np.arange(2000), vectors)
    queries = vectors[:50] + 0.5 * rng.standard_normal((50, 64)).astype(np.float32)
    hits = index.search(queries, 1)
    assert (hits.ids[:, 0] == np.arange(50)).mean() >= 0.98
    exact = scores_of(queries, vectors, "cosine")
    np.testing.assert_allclose(hits.scores[:, 0], exact[np.arange(50), hits.ids[:, 0]], atol=0.02)
    assert index.nbytes < 0.75 * 2000 * 64 * 4


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded(tmp_path: Path, kind) -> None:
    rng = np.random.default_rng(0)
    index = kind(8, "l2")
    index.add(np.arange(30), rng.standard_normal((30, 8)))
    index.save(tmp_path / "i")
    loaded = kind.load(tmp_path / "i")
    assert isinstance(loaded, kind)
    queries = rng.standard_normal((4, 8))
    np.testing.assert_array_equal(loaded.search(queries, 5).ids, index.search(queries, 5).ids)
    data = bytearray((tmp_path / "i").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "i").write_bytes(data)
    with pytest.raises(everlong.CorruptMemoryError):
        kind.load(tmp_path / "i")
    with pytest.raises(everlong.MemoryNotFoundError):
        kind.load(tmp_path / "none")


@pytest.mark.parametrize("kind", KINDS)
def test_nonsense_is_refused(kind) -> None:
    index = kind(3)
    assert (index.search([[1, 2, 3]], 2).ids == -1).all()
    index.add([5], [[1, 2, 3]])
    for wrong in [
        lambda: index.add([5], [[1, 2, 3]]),
        lambda: index.add([6], [[1, 2, float("nan")]]),
        lambda: index.add([6], [[1, 2]]),
        lambda: index.add([-1], [[1, 2, 3]]),
        lambda: index.search([[1, 2, float("nan")]], 1),
        lambda: index.search([[1, 2]], 1),
        lambda: index.search(np.ones((3, 2)), 1),
        lambda: index.search([[1, 2, 3]], 0),
        lambda: kind(0),
        lambda: kind(3, "far"),
    ]:
        with pytest.raises((ValueError, everlong.EverlongError)):
            wrong()
    assert len(index) == 1


def centred(count: int, dimension: int, topics: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors [count, dimension] around topics, and queries [50, dimension] around the same."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((topics, dimension))
    of = rng.integers(topics, size=count + 50)
    drawn = (centres[of] + 0.5 * rng.standard_normal((count + 50, dimension))).astype(np.float32)
    return drawn[:count], drawn[count:]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60)), min_size=1, max_size=12), st.integers(0, 100))
def test_lists_hold_what_is_there_after_any_life(steps: list[tuple[bool, int]], seed: int) -> None:
    """Against a plain set: vectors come and go, lists part and are given up; all lists together find what is exact."""
    rng = np.random.default_rng(seed)
    index = NeuralInvertedIndex(6, "l2", list_vectors=8, probes=1, exact_below=0)
    there: dict[int, np.ndarray] = {}
    following = 0
    for comes, count in steps:
        if comes or not there:
            vectors = np.repeat(rng.standard_normal((1, 6)), count, 0) + rng.choice([0.0, 1.0]) * rng.standard_normal(
                (count, 6)
            )
            ids = np.arange(following, following + count)
            following += count
            index.add(ids, vectors)
            there.update(zip(ids.tolist(), vectors.astype(np.float32), strict=True))
        else:
            gone = rng.permutation(sorted(there))[:count]
            assert index.remove(gone) == len(gone)
            for id in gone.tolist():
                del there[id]
        lists = index.lists
        assert lists.sizes.sum() == len(index) == len(there)
        assert lists.sizes.max(initial=0) <= 16
        assert set(index.lists_of(list(there))) <= set(lists.ids)
    if there:
        query = rng.standard_normal((1, 6)).astype(np.float32)
        hits = index.search(query, 3, probes=10_000)
        scores = scores_of(query, np.stack(list(there.values())), "l2")[0]
        np.testing.assert_allclose(hits.scores[0, : len(there)], np.sort(scores)[::-1][:3], rtol=1e-4, atol=1e-5)


def test_more_probes_find_more_and_a_router_is_what_it_was_set_to(tmp_path: Path) -> None:
    vectors, queries = centred(4_000, 24, 60, seed=1)
    index = NeuralInvertedIndex(24, list_vectors=32, exact_below=0)
    index.add(np.arange(4_000), vectors)
    exact = FlatIndex(24)
    exact.add(np.arange(4_000), vectors)
    best = exact.search(queries, 10).ids

    def recall(probes: int) -> float:
        found = index.search(queries, 10, probes=probes).ids
        return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, best, strict=True)]))

    shares = [recall(probes) for probes in (1, 4, 16, 64)]
    assert shares == sorted(shares)
    assert shares[-1] > 0.99
    router = index.router
    assert np.array_equal(router.lists, index.lists.ids)
    np.testing.assert_allclose(router.vectors, index.lists.centroids)
    # One that hates where the best are finds less.
    wrong = Router(router.lists, -router.vectors, router.biases)
    index.router = wrong
    assert recall(4) < shares[1] / 2
    index.save(tmp_path / "lists")
    again = NeuralInvertedIndex.load(tmp_path / "lists")
    np.testing.assert_array_equal(again.router.vectors, wrong.vectors)
    with pytest.raises(everlong.MemoryNotFoundError, match="no list 99999"):
        index.router = Router(np.array([99_999]), router.vectors[:1], router.biases[:1])
    with pytest.raises(ValueError, match="biases has 2 numbers"):
        index.router = Router(router.lists[:1], router.vectors[:1], router.biases[:2])


def test_terms_bring_in_what_no_probe_sees() -> None:
    vectors, queries = centred(2_000, 16, 40, seed=2)
    index = NeuralInvertedIndex(16, list_vectors=16, probes=1, exact_below=0)
    index.add(np.arange(2_000), vectors)
    order = np.argsort(-scores_of(queries[:1], vectors, "cosine")[0])
    few = index.search(queries[:1], 10).ids[0]
    missed = int(next(id for id in order if id not in few))
    index.set_terms(missed, [11, 12])
    assert missed in index.search(queries[:1], 10, terms=[[12]]).ids[0]
    assert missed not in index.search(queries[:1], 10, terms=[[13]]).ids[0]
