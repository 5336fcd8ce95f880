"""Texts as vectors: what an encoder is, and what tells its vectors from another's."""

from __future__ import annotations

import hashlib
import threading
import weakref
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Encoder(Protocol):
    """Makes vectors of texts. Called by one thread at a time, however many memories use it."""

    def encode(self, sentences: list[str]) -> Any:
        """Return one vector a text: an array or tensor [len(sentences), D]."""


def encoder_name(encoder: Encoder) -> str:
    """Return what tells an encoder's vectors from another's: its name and what it makes of a sentence."""
    probe = vectors_of(encoder, ["The quick brown fox jumps over the lazy dog."])
    # Rounded, because another machine, or another number of threads, adds in another order.
    print_ = hashlib.sha256(np.round(probe, 2).tobytes()).hexdigest()[:16]
    return f"{getattr(encoder, 'name', type(encoder).__name__)} {print_}"


_locks: weakref.WeakKeyDictionary[Encoder, threading.RLock] = weakref.WeakKeyDictionary()
_locking = threading.Lock()  # to be held while a lock is looked up
_shared_lock = threading.RLock()  # for encoders that have no hash, or allow no weak reference


def _lock_of(encoder: Encoder) -> threading.RLock:
    with _locking:
        try:
            return _locks.setdefault(encoder, threading.RLock())
        except TypeError:
            return _shared_lock


def vectors_of(encoder: Encoder, texts: list[str]) -> npt.NDArray[np.float32]:
    """Return [len(texts), D], one thread at a time. ValueError where the encoder made something else."""
    with _lock_of(encoder):
        encoded = encoder.encode(texts)
    if hasattr(encoded, "detach"):  # a tensor
        encoded = encoded.detach().float().cpu().numpy()  # numpy has no bf16
    vectors = np.ascontiguousarray(encoded, dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise ValueError(f"the encoder made {vectors.shape} of {len(texts)} texts, expected ({len(texts)}, D)")
    return vectors
