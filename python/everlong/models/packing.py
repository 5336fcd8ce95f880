"""One token at a time on a CPU: query heads that share a key head go through its keys together.

torch's attention on a CPU goes through all keys once for every query head, even where several share them. After a long
text this is most of the time that a token takes. With a mask, a recent transformers lays queries of a single token that
share a key head beside each other, and the keys are read once. Without a mask it leaves the sharing to torch. So a mask
that hides nothing is all it takes, and the outcome is the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

from everlong.models.releases import PACKS_QUERIES, cache_argument


def takes_masks(model: Any) -> bool:
    """Return whether the model takes a mask [1, 1, queries, keys] of bool as it is: one of transformers' own does."""
    own = type(model).__module__.startswith("transformers.")
    return own and getattr(model.config, "_attn_implementation", None) == "sdpa"


def packs(model: Any) -> bool:
    """Return whether a mask makes transformers read shared keys once for this model."""
    return takes_masks(model) and model.device.type == "cpu" and PACKS_QUERIES


def open_mask(tokens: int) -> torch.Tensor:
    """Return [1, 1, 1, tokens]: one query that sees so many keys, its own among them. Every layer takes it as it is."""
    return torch.ones(1, 1, 1, tokens, dtype=torch.bool, device="cpu")


@contextlib.contextmanager
def packed(model: Any) -> Iterator[None]:
    """Context manager: transformers' own `generate` gets such a mask for each token of a batch of 1 without padding."""
    if not packs(model):
        yield
        return

    name = cache_argument(model)

    def give_mask(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ids, cache = kwargs.get("input_ids"), kwargs.get(name)
        if ids is None or ids.shape != (1, 1) or cache is None or not all(map(_full, cache.layers)):
            return None
        return args, {**kwargs, "attention_mask": open_mask(cache.get_seq_length() + 1)}

    hook = model.register_forward_pre_hook(give_mask, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def _full(layer: Any) -> bool:
    """Return whether a cache layer holds all tokens."""
    return isinstance(layer, DynamicLayer) and not layer.is_sliding
