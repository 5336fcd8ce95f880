"""Keys and values of a block's kept tokens: how they are made and how they are stored with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

import everlong.ops as ops
from everlong.frame.kept import KeptRows
from everlong.frame.part import EvictionWriter, Rows, Span
from everlong.models.rope import NO_ROPE


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
