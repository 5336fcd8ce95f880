"""A block's payload "kept": which of its tokens were chosen, and their keys and values, a tenth of the whole or less.

They are two tensors of the block (docs/format.md): `kept.tokens`, of every block that was trimmed, and `kept.kv`, of
those that were archived with `recall_mode="kept"`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_TOKENS, _KV = "kept.tokens", "kept.kv"
_MOST_BYTES = 48 << 20  # of what a block may carry


@dataclasses.dataclass(frozen=True, eq=False)
class KeptPayload:
    """The chosen tokens of one block."""

    tokens: Sequence[int]  # of the stream, ascending
    payload: npt.NDArray[np.uint8]  # their keys and values in that order, laid out as those of a block

    def place_of(self, token: int) -> int:
        """Which of them it is."""
        return int(np.searchsorted(self.tokens, token))


def tensors_of(
    begin: int, chosen: Sequence[int], payload: npt.NDArray[np.uint8] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """As they are stored with a block that begins there; chosen: the best first."""
    tensors: dict[str, npt.NDArray[Any]] = {_TOKENS: (np.asarray(chosen, dtype=np.int64) - begin).astype(np.int32)}
    if payload is not None and len(payload) <= _MOST_BYTES:
        tensors[_KV] = payload
    return tensors


def chosen_in(tensors: Mapping[str, npt.NDArray[Any]], begin: int, end: int) -> list[int] | None:
    """The chosen tokens of the block [begin, end), the best first; None where it was not trimmed."""
    offsets = tensors.get(_TOKENS)
    if offsets is None or offsets.dtype != np.int32 or offsets.ndim != 1:
        return None
    fit = len(np.unique(offsets)) == len(offsets) and bool(np.all((offsets >= 0) & (offsets < end - begin)))
    return [begin + int(offset) for offset in offsets] if fit else None


def payload_in(
    tensors: Mapping[str, npt.NDArray[Any]], begin: int, end: int, block_bytes: Callable[[int], int]
) -> KeptPayload | None:
    """Of the block [begin, end); None where it has none. `block_bytes` of a number of tokens: what they take."""
    chosen, payload = chosen_in(tensors, begin, end), tensors.get(_KV)
    if not chosen or payload is None or payload.dtype != np.uint8 or len(payload) != block_bytes(len(chosen)):
        return None
    return KeptPayload(sorted(chosen), payload)
