"""What differs between the releases of transformers that everlong runs with, found by what is there and not by number.

Each thing names the release that made it needless: with a later minimum (`_native.py`) it can go. Of torch nothing
differs that everlong uses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaForCausalLM, cache_utils
from transformers.integrations import sdpa_attention

# Cache layers that hold nothing, as those of layers that use another layer's keys. Until 5.22 such layers have no place
# in a cache at all.
EMPTY_LAYERS: tuple[type, ...] = tuple(filter(None, [getattr(cache_utils, "DummyLayer", None)]))

# Whether attention under a mask goes once through keys that several query heads share. From 5.23 on; until then it
# copies the keys for each head, so that a mask costs more than it saves.
PACKS_QUERIES: bool = hasattr(sdpa_attention, "pack_gqa")

# What a model calls the cache that it goes on from: `cache` from 5.24 on, `past_key_values` before. A model of other
# making may keep the older name, or have one of its own.
_CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state")


def cache_argument(model: Any) -> str:
    """The name among the arguments of its forward, and in its output; that of transformers' own models for want of one.

    An adapter's wrapper takes what the model below it takes.
    """
    below = model.get_base_model() if hasattr(model, "get_base_model") else model
    return _named(below.forward) or _named(LlamaForCausalLM.forward) or _CACHE_NAMES[0]


def cache_field(out: Any) -> str | None:
    """The name of the cache in a model's output; None where it has none."""
    fields = getattr(out, "__dict__", {})  # an older name that is a mere property warns when it is read
    return next((name for name in _CACHE_NAMES if fields.get(name) is not None), None)


def rotary_positions(rotary: torch.nn.Module, positions: torch.Tensor) -> torch.Tensor:
    """Positions [1, T] of text as a rotary embedding wants them.

    One for pictures too has three axes, which are the same for text; from 5.19 on it makes them of one by itself.
    """
    return positions.expand(3, -1, -1) if hasattr(rotary, "mrope_section") else positions


def hides_nothing(attention_mask: torch.Tensor) -> bool:
    """Whether it is one of ones alone: `generate` makes it where it is given none, and from 5.18 on drops it again."""
    return bool((attention_mask == 1).all())


def checkpointing(model: Any) -> tuple[Callable[..., None], Callable[[], None]]:
    """What turns on, and off, that activations are computed again on the way back; "gradient" until 5.22."""
    name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    return getattr(model, f"{name}_checkpointing_enable"), getattr(model, f"{name}_checkpointing_disable")


def _named(forward: Any) -> str | None:
    parameters = inspect.signature(forward).parameters
    return next((name for name in _CACHE_NAMES if name in parameters), None)
