"""all-MiniLM-L6-v2 sentence embeddings: the encoder of everlong's own embedding index, over passages of text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from everlong.retrieval.embedding import EncoderNotFoundError, load_encoder
from everlong_lab.eval.baselines.base import MissingPackageError
from everlong_lab.eval.baselines.passages import PassageRetrieval


@dataclasses.dataclass
class MiniLm(PassageRetrieval):
    """Compares windows and questions by the cosine of their vectors, which have unit length."""

    name: ClassVar[str] = "minilm"
    window: int = 32  # tokens of one vector, as in everlong's own embedding index

    def index(self, windows: Sequence[str]) -> None:
        try:
            self._encoder = load_encoder("minilm")
        except EncoderNotFoundError as error:
            raise MissingPackageError(str(error)) from error
        self._vectors = self._embed(windows)

    def scores(self, question: str) -> npt.NDArray[np.float64]:
        similar: npt.NDArray[np.float64] = (self._vectors @ self._embed([question])[0]).astype(np.float64)
        return similar

    def index_bytes(self) -> int:
        return self._vectors.nbytes

    def _embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return vectors [texts, 384]."""
        return np.asarray(self._encoder.encode(list(texts)), dtype=np.float32)
