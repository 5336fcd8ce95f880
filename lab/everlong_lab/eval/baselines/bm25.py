"""BM25 over words (Okapi, k1 = 1.5, b = 0.75) by the package rank-bm25."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from everlong.text.words import words_in
from everlong_lab.eval.baselines.base import MissingPackageError
from everlong_lab.eval.baselines.passages import PassageRetrieval

# Size of one entry of an inverted list that is stored compactly: window and count.
_POSTING_BYTES = 8


@dataclasses.dataclass
class Bm25(PassageRetrieval):
    """Scores windows as long as the pages that everlong's own words index scores."""

    name: ClassVar[str] = "bm25"

    def index(self, windows: Sequence[str]) -> None:
        try:
            from rank_bm25 import BM25Okapi
        except ImportError:
            raise MissingPackageError("bm25 needs the package rank-bm25: pip install rank-bm25==0.2.2") from None
        self._bm25 = BM25Okapi([words_in(window) for window in windows])

    def scores(self, question: str) -> npt.NDArray[np.float64]:
        return np.asarray(self._bm25.get_scores(words_in(question)), dtype=np.float64)

    def index_bytes(self) -> int:
        return _POSTING_BYTES * sum(len(frequencies) for frequencies in self._bm25.doc_freqs)
