"""Vector indexes on their own: which of many vectors are nearest to a query.

    index = everlong.index.HnswIndex(384)
    index.add(ids, vectors)                          # ids [n], vectors [n, 384]
    hits = index.search(queries, k=5, allowed=mask)  # hits.ids, hits.scores [queries, 5]

Thread-safe: searches run beside each other and beside one writer (cpp/index/include/everlong/index/vector_index.h).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

import everlong._core as _core
from everlong.paths import absolute

Metric = Literal["inner_product", "cosine", "l2"]
Storage = Literal["fp32", "bf16", "int8", "e4m3"]


@dataclasses.dataclass(frozen=True)
class Hits:
    """Results, best first. Where fewer than k are allowed: id -1, score minus infinity."""

    ids: npt.NDArray[np.int64]  # [queries, k]
    scores: npt.NDArray[np.float32]  # [queries, k]: inner product, cosine, or minus the squared distance


class VectorIndex:
    """What every kind of index does. Numbers are taken as float32. NaN and infinities raise ValueError."""

    def __init__(self, core: _core.VectorIndex) -> None:
        self._core = core

    def add(self, ids: npt.ArrayLike, vectors: npt.ArrayLike) -> None:
        """Add vectors [n, dimension] under ids [n] >= 0. ValueError, and no change, for an id here or named twice."""
        self._core.add(_ids(ids), _rows(vectors))

    def remove(self, ids: npt.ArrayLike) -> int:
        """Remove ids, and return how many of them were here. Their room is used again."""
        return self._core.remove(_ids(ids))

    def search(self, queries: npt.ArrayLike, k: int, allowed: npt.NDArray[np.bool_] | None = None) -> Hits:
        """Find the k nearest for queries [q, dimension]. An id is left out where `allowed[id]` is False or missing."""
        return Hits(*self._core.search(_rows(queries), k, _mask(allowed)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file, replaced whole or not at all."""
        self._core.save(absolute(path))

    def __len__(self) -> int:
        return self._core.size

    @property
    def dimension(self) -> int:
        """How many numbers a vector has."""
        return self._core.dimension

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return self._core.nbytes


class FlatIndex(VectorIndex):
    """Exact: every allowed vector is scored. int8 and e4m3 keep a byte a number and a scale a vector."""

    def __init__(self, dimension: int, metric: Metric = "cosine", storage: Storage = "fp32") -> None:
        super().__init__(_core.VectorIndex.flat(dimension, metric, storage))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FlatIndex:
        """Read what `save` wrote. MemoryNotFoundError, CorruptMemoryError."""
        index = cls.__new__(cls)
        VectorIndex.__init__(index, _core.VectorIndex.load_flat(absolute(path)))
        return index


class HnswIndex(VectorIndex):
    """A graph over fp32 vectors: approximate, and exact where at most `exact_below` vectors are allowed."""

    def __init__(
        self,
        dimension: int,
        metric: Metric = "cosine",
        *,
        links: int = 16,
        ef_construction: int = 200,
        ef: int = 64,
        exact_below: int = 10_000,
    ) -> None:
        super().__init__(_core.VectorIndex.hnsw(dimension, metric, links, ef_construction, ef, exact_below))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HnswIndex:
        """Read what `save` wrote. MemoryNotFoundError, CorruptMemoryError."""
        index = cls.__new__(cls)
        VectorIndex.__init__(index, _core.VectorIndex.load_hnsw(absolute(path)))
        return index


@dataclasses.dataclass(frozen=True)
class Lists:
    """The lists of a `NeuralInvertedIndex`, by id. A list that is split becomes two new ones."""

    ids: npt.NDArray[np.int64]
    centroids: npt.NDArray[np.float32]  # [lists, dimension]
    sizes: npt.NDArray[np.int64]  # number of vectors in each


@dataclasses.dataclass(frozen=True)
class Router:
    """Which lists a query probes: by the inner product of their vectors with the query, plus their biases."""

    lists: npt.NDArray[np.int64]
    vectors: npt.NDArray[np.float32]  # [lists, dimension]
    biases: npt.NDArray[np.float32]


class NeuralInvertedIndex(VectorIndex):
    """Lists that grow and split with the vectors, and a router to them that can be learned (parts/router).

    A query looks into `probes` lists. The `rescored` best of their int8 codes are scored again from fp32. Where at most
    `exact_below` vectors are allowed, all are. cpp/index/include/everlong/index/neural_inverted_index.h says more.
    """

    def __init__(
        self,
        dimension: int,
        metric: Metric = "cosine",
        *,
        list_vectors: int = 256,
        probes: int = 32,
        rescored: int = 64,
        exact_below: int = 10_000,
    ) -> None:
        self._own(_core.NeuralInvertedIndex(dimension, metric, list_vectors, probes, rescored, exact_below))

    @classmethod
    def of(cls, core: _core.NeuralInvertedIndex) -> NeuralInvertedIndex:
        """Return a memory's own: of `memory.core.index.page_lists()`."""
        index = cls.__new__(cls)
        index._own(core)
        return index

    def _own(self, core: _core.NeuralInvertedIndex) -> None:
        super().__init__(core)
        self._lists = core

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> NeuralInvertedIndex:
        """Read what `save` wrote. MemoryNotFoundError, CorruptMemoryError."""
        return cls.of(_core.NeuralInvertedIndex.load(absolute(path)))

    def search(
        self,
        queries: npt.ArrayLike,
        k: int,
        allowed: npt.NDArray[np.bool_] | None = None,
        *,
        probes: int = 0,
        terms: Sequence[Sequence[int]] = (),
    ) -> Hits:
        """Search as every index does, with `probes` in place of the index's own.

        `terms` are token ids of each query. The rarest of them name vectors that are scored wherever they lie.
        """
        return Hits(*self._lists.probe(_rows(queries), k, _mask(allowed), probes, [list(own) for own in terms]))

    @property
    def lists(self) -> Lists:
        """The lists as they are now."""
        return Lists(*self._lists.lists())

    def lists_of(self, ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the list of each vector; -1: it is not here."""
        return self._lists.lists_of(_ids(ids))

    @property
    def router(self) -> Router:
        """The learned router, or the one that leads to the nearest centroids."""
        return Router(*self._lists.router())

    @router.setter
    def router(self, router: Router) -> None:
        """Set a router. ValueError, or MemoryNotFoundError for lists that are gone: then nothing is changed."""
        self._lists.set_router(router.lists, _rows(router.vectors), np.ascontiguousarray(router.biases, np.float32))

    def set_terms(self, id: int, terms: Sequence[int]) -> None:
        """Set the token ids that name a vector, 64 at most, in place of those before."""
        self._lists.set_terms(id, list(terms))


def _mask(allowed: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.uint8] | None:
    return None if allowed is None else np.ascontiguousarray(allowed, dtype=np.bool_).view(np.uint8)


def _ids(ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
    return np.ascontiguousarray(ids, dtype=np.int64).reshape(-1)


def _rows(vectors: npt.ArrayLike) -> npt.NDArray[np.float32]:
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    return rows[None] if rows.ndim == 1 else rows
