"""Trimming in plain transformers: a cache that keeps some tokens, each at its own position."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from everlong.models.releases import cache_argument


@dataclasses.dataclass(frozen=True)
class WholeText:
    """A text that was read by itself in one forward."""

    cache: DynamicCache
    logits: torch.Tensor  # fp32 [rows, V] of the last tokens
    hidden: Mapping[int, torch.Tensor]  # [n, hidden size] by layer, counted as in `output_hidden_states`


@torch.no_grad()
def read_whole(model: Any, ids: torch.Tensor, layers: Sequence[int] = (), *, rows: int = 1) -> WholeText:
    """Read ids [n], with states of some layers and logits of the last `rows` tokens."""
    cache = DynamicCache(config=model.config)
    out = model(
        input_ids=ids[None].to(model.device),
        **{cache_argument(model): cache},
        use_cache=True,
        logits_to_keep=rows,
        output_hidden_states=bool(layers),
    )
    return WholeText(cache, out.logits[0].float(), {layer: out.hidden_states[layer][0] for layer in layers})


def cut_cache(model: Any, cache: DynamicCache, kept: torch.Tensor) -> DynamicCache:
    """Return a cache for a batch of B from a cache of one text. Row b holds the tokens kept [B, K] int64 (ascending).

    It is a copy. All layers and heads keep the same tokens. For models with full attention in all layers.
    """
    cut = DynamicCache(config=model.config)
    rows, count = kept.shape
    of_layers: Iterable[Any] = cache.layers
    for layer, of_layer in enumerate(of_layers):
        keys, values = (
            full[0].index_select(1, kept.flatten().to(full.device)).unflatten(1, (rows, count)).transpose(0, 1)
            for full in (of_layer.keys, of_layer.values)
        )
        cut.update(keys.contiguous(), values.contiguous(), layer)
    return cut


@torch.no_grad()
def go_on(
    model: Any, cache: DynamicCache, kept: torch.Tensor, ids: torch.Tensor, first: int, logits_to_keep: int = 0
) -> torch.Tensor:
    """Return logits [B, S, V] of ids [B, S], or of their last `logits_to_keep` (0: all).

    They are read at positions `first`, first + 1 ... after the tokens kept [B, K] of a cache, which stays as it is.
    """
    positions = first + torch.arange(ids.shape[1], device=model.device)
    out = model(
        input_ids=ids.to(model.device),
        **{cache_argument(model): cut_cache(model, cache, kept)},
        position_ids=positions[None].expand(len(ids), -1),
        use_cache=True,
        logits_to_keep=logits_to_keep,
    )
    logits: torch.Tensor = out.logits
    return logits
