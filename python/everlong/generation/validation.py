"""Checks what is given to be asked, and how the answer is to be decoded, before anything is done with it."""

from __future__ import annotations

import difflib
import functools
import inspect
import numbers
from collections.abc import Mapping
from typing import Any

import transformers
from transformers.generation.utils import GenerationMixin

from everlong.config import MemoryConfig
from everlong.memory.where import require_where

# What `transformers.generate` takes beside the settings of a GenerationConfig, and a frame has no use for.
_OF_THE_FRAME = {
    "past_key_values": "the frame is the cache; what was read stands in it",
    "cache": "the frame is the cache; what was read stands in it",
    "inputs_embeds": "a memory goes on from text; give it as the question, or read it",
    "inputs": "a memory goes on from text; give it as the question",
    "input_ids": "a memory goes on from text; model.generate(custom_generate=mm.decode) takes ids",
    "attention_mask": "a memory sees the whole frame",
    "position_ids": "the frame says where a token stands",
    "custom_generate": "a memory decodes by itself",
}
_MORE = ("tokenizer",)  # taken by `transformers.generate` without being named there


def require_generation_arguments(where: object, generation: Mapping[str, Any], max_new_tokens: object) -> None:
    """Raise TypeError for an argument that neither a memory nor transformers' `generate` can obey."""
    require_where(where)
    whole = isinstance(max_new_tokens, numbers.Integral) and not isinstance(max_new_tokens, bool)
    if max_new_tokens is not None and not whole:
        raise TypeError(f"max_new_tokens is {max_new_tokens!r}, expected a whole number, or None for the default")
    for name in generation:
        if name in _OF_THE_FRAME:
            raise TypeError(f"{name} is no argument here: {_OF_THE_FRAME[name]}")
        if name not in _known():
            near = difflib.get_close_matches(name, _known(), 1)
            raise TypeError(
                f"there is no argument {name!r}{f', but {near[0]!r}' if near else ''}: expected one of this call, or a "
                "setting of transformers' GenerationConfig"
            )


def require_config(memory: object, config: object) -> None:
    """Raise TypeError for a config that is none, and for one that stands in the place of the memory."""
    if isinstance(memory, MemoryConfig):
        raise TypeError("memory is a MemoryConfig: give it as config=, and for memory a folder, None or a Memory")
    if config is not None and not isinstance(config, MemoryConfig):
        raise TypeError(
            f"config is a {type(config).__name__}, expected a MemoryConfig; MemoryConfig().with_settings(["
            '"search.groups=2"]) takes settings as text'
        )


@functools.cache
def _known() -> frozenset[str]:
    """Return the names that transformers' `generate` takes, and those of its settings."""
    own = inspect.signature(GenerationMixin.generate).parameters
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    named = {name for name, parameter in own.items() if parameter.kind not in kinds and name != "self"}
    return frozenset({*named, *vars(transformers.GenerationConfig()), *_MORE} - set(_OF_THE_FRAME))
