"""What a model calls the cache that it goes on from.

`cache` from transformers 5.24 on, `past_key_values` before; a model of other making may keep the older name, or have
one of its own.
"""

from __future__ import annotations

import inspect
from typing import Any

from transformers import LlamaForCausalLM

_NAMES = ("cache", "past_key_values", "cache_params", "state")


def cache_argument(model: Any) -> str:
    """The name among the arguments of its forward, and in its output; that of transformers' own models for want of one.

    An adapter's wrapper takes what the model below it takes.
    """
    below = model.get_base_model() if hasattr(model, "get_base_model") else model
    return _named(below.forward) or _named(LlamaForCausalLM.forward) or _NAMES[0]


def cache_field(out: Any) -> str | None:
    """The name of the cache in a model's output; None where it has none."""
    fields = getattr(out, "__dict__", {})  # an older name that is a mere property warns when it is read
    return next((name for name in _NAMES if fields.get(name) is not None), None)


def _named(forward: Any) -> str | None:
    parameters = inspect.signature(forward).parameters
    return next((name for name in _NAMES if name in parameters), None)
