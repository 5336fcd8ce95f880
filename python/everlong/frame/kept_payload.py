"""A block's payload "kept": which of its tokens were chosen, and their keys and values, a tenth of the whole or less.

They are two tensors of the block (docs/format.md): the tokens, of every block that was trimmed, and the payload, of
those that were archived with `answer.recall_mode="kept"` or with a writer, which has a payload of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.memory.kept import TOKENS, payload_name

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
    begin: int,
    chosen: Sequence[int],
    payload: npt.NDArray[np.uint8] | None = None,
    writer: str | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """As they are stored with a block that begins there; chosen: the best first. `writer` as `payload_name` has it."""
    tensors: dict[str, npt.NDArray[Any]] = {TOKENS: (np.asarray(chosen, dtype=np.int64) - begin).astype(np.int32)}
    if payload is not None and len(payload) <= _MOST_BYTES:
        tensors[payload_name(writer)] = payload
    return tensors


def chosen_in(tensors: Mapping[str, npt.NDArray[Any]], begin: int, end: int) -> list[int] | None:
    """The chosen tokens of the block [begin, end), the best first; None where it was not trimmed."""
    offsets = tensors.get(TOKENS)
    if offsets is None or offsets.dtype != np.int32 or offsets.ndim != 1:
        return None
    fit = len(np.unique(offsets)) == len(offsets) and bool(np.all((offsets >= 0) & (offsets < end - begin)))
    return [begin + int(offset) for offset in offsets] if fit else None


def kept_payload(
    core: _core.Memory, block: int, writer: str | None, block_bytes: Callable[[int], int]
) -> KeptPayload | None:
    """Of a block, by that writer; None where it has none, or is not there (any more).

    `block_bytes` of a number of tokens: what they take.
    """
    try:
        found = core.block(block)
        tensors = {name: core.block_tensor(block, name) for name in (TOKENS, payload_name(writer))}
    except MemoryNotFoundError:
        return None
    chosen, payload = chosen_in(tensors, found.begin, found.end), tensors[payload_name(writer)]
    if not chosen or payload.dtype != np.uint8 or len(payload) != block_bytes(len(chosen)):
        return None
    return KeptPayload(sorted(chosen), payload)
