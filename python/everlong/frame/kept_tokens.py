"""Kept tokens of a block: how they are chosen, how their keys and values are made, and how they are stored with it.

They are two tensors of the block (docs/format.md). Every block that was trimmed has the tokens. Blocks that were
archived with `answer.recall_mode="kept"` or with a writer have the payload, a writer's one of its own: a tenth of the
whole payload or less.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
import everlong.ops as ops
from everlong.errors import MemoryNotFoundError
from everlong.frame.part import EvictionWriter, Rows, Span, TokenScorer
from everlong.frame.parts import needs_of
from everlong.kv_cache.kept import KeptRows
from everlong.memory.kept_tensors import TOKENS, payload_name
from everlong.models.rope import NO_ROPE

_MOST_BYTES = 48 << 20  # the most that a block may carry

# --- which tokens


def token_scores(part: TokenScorer | None, span: Span) -> torch.Tensor:
    """Return the part's scores [T] of a block's tokens. Without a part or its states, the newest are best."""
    if part is None or not span.hidden.keys() >= set(needs_of(part).hidden_layers):
        return torch.arange(len(span.ids), device="cpu")
    return part.score_tokens(span)


def best_tokens(scores: torch.Tensor, begin: int, runs: Sequence[tuple[int, int]], count: int) -> list[int]:
    """Return the `count` best tokens of the stream among those of `runs`, the best first; scores [T] from `begin` on.

    A score that is not a number is the worst.
    """
    candidates = torch.cat([torch.arange(*run, device="cpu") for run in runs])
    own = scores.detach().double().cpu().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    newest_first = candidates.flip(0)
    order = torch.argsort(own[newest_first - begin], descending=True, stable=True)
    best: list[int] = newest_first[order[:count]].tolist()
    return best


# --- their keys and values


def kept_rows(part: EvictionWriter | None, span: Span) -> Rows:
    """Return keys and values [L, Hkv, N, D] of a span's chosen tokens: the part's, or without a part their own."""
    k, v = span.kv()
    if part is not None:
        return part.write_evicted(span, (k, v))
    assert span.chosen is not None
    chosen = span.chosen.to(k.device)
    return k[:, :, chosen], v[:, :, chosen]


def kept_bytes(rows: Rows, *, page_tokens: int, codec: str) -> npt.NDArray[np.uint8]:
    """Return their payload, laid out like a block's."""
    k, v = rows
    return ops.encode_kv(k.contiguous(), v.contiguous(), page_tokens, codec).cpu().numpy()


def plain_rows(
    payload: npt.NDArray[np.uint8],
    lengths: Sequence[int],
    shape: tuple[int, int, int],
    bytes_of: Callable[[int], int],
    *,
    page_tokens: int,
    codec: str,
    dtype: torch.dtype,
) -> KeptRows:
    """Decode the pages of a payload, one after the other. Return keys and values, un-rotated, on the CPU.

    lengths: tokens of each page; shape: layers, KV heads, head_dim; `bytes_of` returns the bytes of a page by its
    tokens.
    """
    layers, heads, dim = shape
    table = torch.zeros(len(lengths), 6, dtype=torch.int64, device="cpu")
    offset = slot = 0
    for row, length in enumerate(lengths):
        table[row] = torch.tensor([offset, length, 0, length, slot, 0], device="cpu")
        offset, slot = offset + bytes_of(length), slot + length
    k, v = torch.zeros(2, layers, heads, slot, dim, dtype=dtype, device="cpu")
    phase = torch.ones(slot, 0, dtype=torch.float32, device="cpu")
    ops.restore_kv(
        torch.from_numpy(payload), table, k, v, phase, phase.clone(), page_tokens, codec, NO_ROPE.inv_freq, 1.0, False
    )
    return KeptRows(k, v)


# --- what is stored with a block


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
