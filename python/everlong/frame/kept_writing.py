"""Who puts into the keys and values of chosen tokens something of the tokens that go; how they are stored with a block.

What a writer does to them is its own affair (parts/kv_writer).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

import everlong.ops as ops
from everlong.frame.kept import KeptRows
from everlong.frame.trimming import ByStates, best_tokens
from everlong.models.rope import NO_ROPE


class AnchorWriter(Protocol):
    """Called on the path of reading, and by a thread in the background: what takes long is not for it."""

    @property
    def id(self) -> str:
        """What tells what it wrote from another writer's."""

    @property
    def hidden_layers(self) -> Sequence[int]:
        """Whose states it reads, as `HiddenTap` counts them."""

    def written(
        self, hidden: Mapping[int, torch.Tensor], k: torch.Tensor, v: torch.Tensor, anchors: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Un-rotated k, v [L, Hkv, N, D] fp32 of anchors [N] int64 (ascending) among tokens k, v [L, Hkv, T, D]."""


class TombstoneWriter:
    """Makes the one slot of a span that leaves: of its best token, with something of the others. Thread-safe."""

    def __init__(self, writer: AnchorWriter, scorer: ByStates) -> None:
        self._writer = writer
        self._scorer = scorer
        self.hidden_layers = tuple(sorted({*writer.hidden_layers, *scorer.hidden_layers}))

    def slot(
        self, hidden: Mapping[int, torch.Tensor], k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """k, v [L, Hkv, 1, D] fp32, un-rotated, of a span's k, v [L, Hkv, T, D] and hidden states [T, hidden size]."""
        best = best_tokens(self._scorer.of_states(hidden), 0, [(0, k.shape[2])], 1)
        return self._writer.written(hidden, k, v, torch.tensor(best, dtype=torch.int64, device="cpu"))


def written_payload(
    writer: AnchorWriter | None,
    hidden: Mapping[int, torch.Tensor],
    k: torch.Tensor,
    v: torch.Tensor,
    anchors: torch.Tensor,
    *,
    page_tokens: int,
    codec: str,
) -> npt.NDArray[np.uint8]:
    """The payload of anchors [N] (ascending) among tokens k, v [L, Hkv, T, D], un-rotated; without writer their own."""
    if writer is None:
        rows = anchors.to(k.device)
        k, v = k[:, :, rows], v[:, :, rows]
    else:
        k, v = writer.written(hidden, k, v, anchors)
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
    """Keys and values, un-rotated, on the CPU, of pages that stand one behind the other in a payload.

    lengths: tokens of each page; shape: layers, KV heads, head_dim; `bytes_of` a page of so many tokens.
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
