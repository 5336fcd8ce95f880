"""Differences between the releases of transformers that everlong runs with, found by feature and not by number.

Each names the release that made it needless. With a later minimum (`_native.py`) it can go. Releases of torch do not
differ in anything that everlong uses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaForCausalLM, cache_utils
from transformers.integrations import sdpa_attention

# Cache layers that hold nothing, for layers that use another layer's keys. Until 5.22 caches have no place for them.
EMPTY_LAYERS: tuple[type, ...] = tuple(filter(None, [getattr(cache_utils, "DummyLayer", None)]))

# Whether attention under a mask reads keys once that several query heads share, from 5.23 on. Until then it copies the
# keys for each head, so that a mask costs more than it saves.
PACKS_QUERIES: bool = hasattr(sdpa_attention, "pack_gqa")

# A model's names for the cache that it goes on from: `cache` from 5.24 on, `past_key_values` before. A model of other
# making may keep the older name, or have one of its own.
_CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state")


def cache_argument(model: Any) -> str:
    """Return the cache's name among the arguments of a model's forward, and in its output.

    A model without any gets the name of transformers' own models. An adapter's wrapper takes what the model below
    takes.
    """
    below = model.get_base_model() if hasattr(model, "get_base_model") else model
    return _named(below.forward) or _named(LlamaForCausalLM.forward) or _CACHE_NAMES[0]


def cache_field(out: Any) -> str | None:
    """Return the name of the cache in a model's output; None where it has none."""
    fields = getattr(out, "__dict__", {})  # an older name that is a mere property warns when it is read
    return next((name for name in _CACHE_NAMES if fields.get(name) is not None), None)


def rotary_positions(rotary: torch.nn.Module, positions: torch.Tensor) -> torch.Tensor:
    """Return positions [1, T] of text as a rotary embedding wants them.

    One for pictures, too, has three axes, which are the same for text. From 5.19 on it makes them from one by itself.
    """
    return positions.expand(3, -1, -1) if hasattr(rotary, "mrope_section") else positions


def hides_nothing(attention_mask: torch.Tensor) -> bool:
    """Return whether a mask is all ones. `generate` makes one where it gets none; from 5.18 on it drops it again."""
    return bool((attention_mask == 1).all())


def checkpointing(model: Any) -> tuple[Callable[..., None], Callable[[], None]]:
    """Return the calls that turn activation checkpointing on and off. It is named "gradient" until 5.22."""
    name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    return getattr(model, f"{name}_checkpointing_enable"), getattr(model, f"{name}_checkpointing_disable")


def _named(forward: Any) -> str | None:
    parameters = inspect.signature(forward).parameters
    return next((name for name in _CACHE_NAMES if name in parameters), None)
