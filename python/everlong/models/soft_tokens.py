"""What a frozen model says after vectors among its tokens, or after keys and values, with a gradient to these."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from everlong.models.releases import cache_argument


@contextlib.contextmanager
def frozen(model: torch.nn.Module) -> Iterator[None]:
    """Freeze the model's weights inside. Afterwards each has a gradient again, if it did before."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad = False
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad = True


def embedded(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return [..., E] of ids [...], as the model takes `inputs_embeds`."""
    found: torch.Tensor = model.get_input_embeddings()(ids.to(model.device)).detach()
    return found


def after_soft_tokens(
    model: Any, before: torch.Tensor, vectors: torch.Tensor, behind: torch.Tensor, rows: int
) -> torch.Tensor:
    """Return logits [B, rows, V] fp32 of the last `rows` tokens of a text.

    The text: ids `before` [S], vectors [B, n, E] among the input embeddings, then ids `behind` [T] or [B, T].
    """
    whole = with_soft_tokens(model, before, vectors, behind)
    logits: torch.Tensor = model(inputs_embeds=whole, use_cache=False, logits_to_keep=rows).logits
    return logits.float()


def with_soft_tokens(model: Any, before: torch.Tensor, vectors: torch.Tensor, behind: torch.Tensor) -> torch.Tensor:
    """Return [B, S + n + T, E] in the model's dtype: vectors [B, n, E] between those of ids [S] and [T] or [B, T]."""
    batch = len(vectors)
    dtype = model.dtype
    ids = behind if behind.ndim == 2 else behind[None].expand(batch, -1)
    first = embedded(model, before)[None].expand(batch, -1, -1)
    return torch.cat([first, vectors.to(model.device, dtype), embedded(model, ids)], dim=1)


def after_kv(model: Any, k: torch.Tensor, v: torch.Tensor, ids: torch.Tensor, rows: int) -> torch.Tensor:
    """Return logits [1, rows, V] fp32 of the last `rows` of ids [T].

    The ids stand right after keys, rotated, and values [layers, Hkv, S, D] at positions 0 .. S - 1.
    """
    cache = DynamicCache(config=model.config)
    dtype = model.dtype
    for layer in range(len(k)):
        cache.update(k[layer][None].to(model.device, dtype), v[layer][None].to(model.device, dtype), layer)
    positions = k.shape[2] + torch.arange(len(ids), device=model.device)
    out = model(
        input_ids=ids[None].to(model.device),
        position_ids=positions[None],
        **{cache_argument(model): cache},
        use_cache=True,
        logits_to_keep=rows,
    )
    logits: torch.Tensor = out.logits
    return logits.float()
