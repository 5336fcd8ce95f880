"""Trimming that a gradient goes through: keys count with a weight, in a forward of transformers' own."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

import torch

from everlong.models.custom_attention import override_attention


class MaskedAttention:
    """Context manager: in forwards inside it the first T keys count with weights m [B, T], all later ones fully.

    The attention of a row to key i is m_i exp(s_i) / sum_j m_j exp(s_j): the masks multiply, and the rest is
    renormalised. With m of 0 and 1 that is the forward of a cache which has only the ones. The derivative by m_i is
    there for both: what token i would change if it were there. Rows are the last of a batch's keys, causally.
    Forwards of other threads, and of other models, attend as ever. Keys that the weights reach must not all weigh 0.
    UnsupportedModelError for a model that does not attend by "sdpa".
    """

    def __init__(self, model: Any, weights: torch.Tensor) -> None:
        self._model = model
        self._weights = weights
        self._lost: list[torch.Tensor] = []

    def __enter__(self) -> MaskedAttention:
        self._bringing = contextlib.ExitStack()
        self._bringing.enter_context(override_attention(self._model, self._masked))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bringing.close()

    def lost(self) -> torch.Tensor:
        """Return a scalar: KL from the masked attention to that with all keys, for the same queries.

        It is the mean over rows, heads and layers: -log of the share of attention that the weights leave, as scores are
        equal.
        """
        return torch.stack(self._lost).mean()

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        """Attend with q [B, H, S, D] and k, v [B, Hkv, N, D] of one layer, rotated. Return [B, H, S, D]."""
        batch, heads, rows, width = q.shape
        keys, groups = k.shape[2], heads // k.shape[1]
        exact = torch.promote_types(q.dtype, torch.float32)
        asked = q.reshape(batch, k.shape[1], groups * rows, width).to(exact)
        scores = (asked @ k.to(exact).transpose(-1, -2) * scale).view(batch, -1, groups, rows, keys)
        later = torch.arange(keys, device=q.device) > keys - rows + torch.arange(rows, device=q.device)[:, None]
        scores = scores.masked_fill(later, -torch.inf)
        whole = torch.exp(scores - scores.detach().amax(dim=-1, keepdim=True))
        weights = self._weights.to(whole)
        later_ones = weights.new_ones(batch, keys - weights.shape[1])
        kept = whole * torch.cat([weights, later_ones], dim=1)[:, None, None, None]
        left = kept.sum(dim=-1, keepdim=True)
        self._lost.append((whole.sum(dim=-1, keepdim=True).log() - left.log()).mean())
        shares = (kept / left).view(batch, k.shape[1], groups * rows, keys)
        return (shares.to(v.dtype) @ v).view(batch, heads, rows, width)

    def _masked(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **arguments: Any,
    ) -> tuple[torch.Tensor, None]:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return self.attend(query, key, value, scale).transpose(1, 2).contiguous(), None
