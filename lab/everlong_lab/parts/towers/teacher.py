"""Vectors of a sentence encoder. The towers learn its similarities beside what is right."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from everlong.text.vectors import Encoder, encoder_name, vectors_of
from everlong_lab.corpora.pairs import Pairs

_AT_ONCE = 512  # texts between two saves


def taught_vectors(
    pairs: Pairs, encoder: Encoder, folder: pathlib.Path, *, progress: Callable[[str, int, int], None] | None = None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return unit vectors of every piece of every text and of every question, in their order; keep them in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [piece for text in pairs.texts for piece in text.pieces]
    words = [question.words for question in pairs.questions]
    name = encoder_name(encoder)
    return (
        _vectors(pieces, encoder, name, folder, "pieces", progress),
        _vectors(words, encoder, name, folder, "questions", progress),
    )


def _vectors(
    texts: list[str],
    encoder: Encoder,
    name: str,
    folder: pathlib.Path,
    what: str,
    progress: Callable[[str, int, int], None] | None,
) -> npt.NDArray[np.float32]:
    digest = hashlib.sha256(name.encode())
    for text in texts:
        digest.update(text.encode())
        digest.update(b"\0")
    file = folder / f"{what}.{digest.hexdigest()[:16]}.npy"
    done: npt.NDArray[np.float32] | None = np.load(file) if file.exists() else None
    rows = [] if done is None else [done]
    count = sum(map(len, rows))
    while count < len(texts):
        vectors = vectors_of(encoder, texts[count : count + _AT_ONCE])
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        rows.append(vectors.astype(np.float32))
        count += len(vectors)
        beside = file.with_suffix(".new.npy")
        np.save(beside, np.concatenate(rows))
        beside.replace(file)
        if progress is not None:
            progress(f"teacher, {what}", count, len(texts))
    return np.concatenate(rows)
