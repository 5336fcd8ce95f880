"""everlong.index against numpy in fp64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import everlong
from everlong.retrieval.index import FlatIndex, HnswIndex, Metric, VectorIndex

KINDS = [FlatIndex, HnswIndex]


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
