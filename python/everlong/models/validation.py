"""Checks what is given as a model and its tokenizer, before anything is done with them."""

from __future__ import annotations

import os
from typing import Any

import torch

from everlong.errors import UnsupportedModelError

_MODEL = "expected a causal LM of transformers, as AutoModelForCausalLM.from_pretrained returns it"
_TOKENIZER = "expected the model's tokenizer, as AutoTokenizer.from_pretrained returns it"
_NEEDED = ("get_vocab", "decode", "all_special_ids")  # of a tokenizer


def require_model_and_tokenizer(model: Any, tokenizer: Any) -> None:
    """Raise TypeError for what is no model and no tokenizer, UnsupportedModelError for a model that says no token."""
    if isinstance(tokenizer, torch.nn.Module) and _is_tokenizer(model):
        raise TypeError("model and tokenizer are swapped: expected MemoryModel(model, tokenizer)")
    if isinstance(model, str | os.PathLike):
        raise TypeError(
            f"model is a name, {os.fspath(model)!r}: MemoryModel.from_pretrained({os.fspath(model)!r}) loads a model "
            "and its tokenizer by name"
        )
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {_named(model)}, {_MODEL}{_within(model, 'model')}")
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        raise TypeError(f"model is {_named(model)}, a module without a config of transformers: {_MODEL}")
    if not _is_token_sequence(model):
        raise UnsupportedModelError(
            f"{config.model_type}: {type(model).__name__} has no head that says the next token; "
            "AutoModelForCausalLM loads the model with its head"
        )
    if isinstance(tokenizer, str | os.PathLike):
        raise TypeError(
            f"tokenizer is a name, {os.fspath(tokenizer)!r}: AutoTokenizer.from_pretrained({os.fspath(tokenizer)!r}) "
            "loads it"
        )
    if not _is_tokenizer(tokenizer):
        raise TypeError(f"tokenizer is {_named(tokenizer)}, {_TOKENIZER}{_within(tokenizer, 'tokenizer')}")


def require_name(name_or_path: object) -> None:
    """Raise TypeError for what is no name or path of a model, ValueError for an empty one."""
    if not isinstance(name_or_path, str | os.PathLike):
        is_model = isinstance(name_or_path, torch.nn.Module)
        hint = ": MemoryModel(model, tokenizer) takes a loaded model" if is_model else ""
        raise TypeError(f"name_or_path is {_named(name_or_path)}, expected a model's name or path{hint}")
    if not os.fspath(name_or_path):
        raise ValueError("name_or_path is empty, expected a model's name or path, such as smollm2")


def _is_tokenizer(value: Any) -> bool:
    return callable(value) and all(hasattr(value, name) for name in _NEEDED)


def _is_token_sequence(model: Any) -> bool:
    """Return whether a model, or the model in a wrapper such as an adapter's, generates."""
    can_generate = getattr(model, "can_generate", None)
    return callable(getattr(model, "generate", None)) and (can_generate is None or bool(can_generate()))


def _named(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _within(value: object, what: str) -> str:
    """Return what to do with something that has a model or tokenizer, such as a pipeline or a processor."""
    if type(value).__module__.startswith("tokenizers"):
        return ": transformers.PreTrainedTokenizerFast(tokenizer_object=...) makes one of it"
    return f": give its .{what}" if getattr(value, what, None) is not None else ""
