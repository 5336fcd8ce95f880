"""Attention that a call brings along: the keys that a cache hands to a layer say how they are attended to.

transformers looks up a model's attention by a name in its config, which all threads share. So nothing is written there.
One function stands under "sdpa" for good. It does what transformers' own does, except for keys that are marked here,
and in forwards of a thread inside `bringing`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from everlong.errors import UnsupportedModelError

_NAME = "sdpa"
_MARK = "everlong_attend"

# Gets what transformers gives: module, query, key, value, mask, and more by name.
AttentionFn = Callable[..., tuple[torch.Tensor, None]]

# Arguments by which a layer changes its scores, beyond a mask and a scale.
CHANGES_SCORES = ("softcap", "position_bias", "s_aux")

_own = threading.local()


def with_attention(keys: torch.Tensor, attend: AttentionFn) -> torch.Tensor:
    """Return keys that are attended to by `attend`, by the layer that gets them from its cache.

    The mark is on this tensor alone. A layer that changes its keys on the way to attention attends as it always does.
    """
    setattr(keys, _MARK, attend)
    return keys


@contextlib.contextmanager
def override_attention(model: Any, attend: AttentionFn) -> Iterator[None]:
    """Context manager: forwards of this model attend by `attend`, in this thread alone. One at a time in a thread.

    UnsupportedModelError for a model that does not attend by "sdpa".
    """
    config = model.config.get_text_config(decoder=True)
    if config._attn_implementation != _NAME:
        raise UnsupportedModelError(
            f"{config.model_type}: it attends by {config._attn_implementation!r}; model.set_attn_implementation("
            f"{_NAME!r}) works, where it is one of transformers' own"
        )
    before = getattr(_own, "brought", None)
    _own.brought = config, attend
    try:
        yield
    finally:
        _own.brought = before


def is_overridden() -> bool:
    """Return whether this thread is inside `override_attention`."""
    return getattr(_own, "brought", None) is not None


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *more: Any,
    **named: Any,
) -> tuple[torch.Tensor, None]:
    attend: AttentionFn = attend_plainly
    if not torch.compiler.is_compiling():  # a compiled model is never one that brings something along
        brought = getattr(_own, "brought", None)
        if brought is not None and getattr(module, "config", None) is brought[0]:
            attend = brought[1]
        attend = getattr(key, _MARK, attend)
    return attend(module, query, key, value, attention_mask, *more, **named)


attend_plainly: AttentionFn = ALL_ATTENTION_FUNCTIONS[_NAME]  # as it stood when everlong was imported
AttentionInterface.register(_NAME, _attend)
