"""A block's payload "kept": its chosen tokens, and their keys and values; a tenth of the whole payload or less.

They are two tensors of the block (docs/format.md). Every block that was trimmed has the tokens. Blocks that were
archived with `answer.recall_mode="kept"` or with a writer have the payload, a writer's one of its own.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.memory.kept import TOKENS, payload_name

_MOST_BYTES = 48 << 20  # the most that a block may carry


@dataclasses.dataclass(frozen=True, eq=False)
class KeptPayload:
    """The chosen tokens of one block."""

    tokens: Sequence[int]  # of the stream, ascending
    payload: npt.NDArray[np.uint8]  # keys and values in that order, laid out like a block's

    def place_of(self, token: int) -> int:
        """Return which of the chosen tokens it is."""
        return bisect.bisect_left(self.tokens, token)

    def has(self, first: int, count: int) -> bool:
        """Return whether all tokens of the run were chosen."""
        place = self.place_of(first)
        return list(self.tokens[place : place + count]) == list(range(first, first + count))


def tensors_of(
    begin: int,
    chosen: Sequence[int],
    payload: npt.NDArray[np.uint8] | None = None,
    writer: str | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors to store with a block. `chosen`: the best first; `writer` as in `payload_name`."""
    tensors: dict[str, npt.NDArray[Any]] = {TOKENS: (np.asarray(chosen, dtype=np.int64) - begin).astype(np.int32)}
    if payload is not None and len(payload) <= _MOST_BYTES:
        tensors[payload_name(writer)] = payload
    return tensors


def chosen_in(tensors: Mapping[str, npt.NDArray[Any]], begin: int, end: int) -> list[int] | None:
    """Return the chosen tokens of the block [begin, end), the best first; None where it was not trimmed."""
    offsets = tensors.get(TOKENS)
    if offsets is None or offsets.dtype != np.int32 or offsets.ndim != 1:
        return None
    fit = len(np.unique(offsets)) == len(offsets) and bool(np.all((offsets >= 0) & (offsets < end - begin)))
    return [begin + int(offset) for offset in offsets] if fit else None


def kept_payload(
    core: _core.Memory, block: int, writer: str | None, block_bytes: Callable[[int], int]
) -> KeptPayload | None:
    """Return a block's payload of that writer; None where it has none, or where there is no such block (any more).

    `block_bytes` returns the bytes of a number of tokens.
    """
    try:
        found = core.blocks.info(block)
        tensors = {name: core.blocks.tensor(block, name) for name in (TOKENS, payload_name(writer))}
    except MemoryNotFoundError:
        return None
    chosen, payload = chosen_in(tensors, found.begin, found.end), tensors[payload_name(writer)]
    if not chosen or payload.dtype != np.uint8 or len(payload) != block_bytes(len(chosen)):
        return None
    return KeptPayload(sorted(chosen), payload)
