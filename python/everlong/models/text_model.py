"""A model that is served by text alone: what comes back is read again, over a cache of the model's own.

It serves models with keys and values that cannot be spliced: learned positions, ALiBi, compressed or chunked attention,
recurrence alone. Only token ids are archived.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch

from everlong.errors import UnsupportedModelError
from everlong.models.block_layers import dtype_of_rounding
from everlong.models.placement import require_embeddings
from everlong.models.releases import cache_field
from everlong.models.rotations import isolate_rotations, own_rotations
from everlong.models.tokens import Tokens
from everlong.models.trial import spread, trial_ids

# Tokens that a model is tried with: all at once, and then a few at a time, each few over the cache of those before.
_TOKENS, _FEW = 40, 3
# How far the logits of the two may be apart, as a share of their spread: what rounding does.
_TOLERANCE, _TOLERANCE_16_BIT = {torch.float32: 1e-3, torch.float64: 1e-3}, 0.1


@dataclasses.dataclass(frozen=True)
class TextModel:
    """How a model goes on reading a text. Its cache is whatever it returns; None begins a text."""

    model: Any
    cache_name: str  # name of the cache among its forward's arguments and in its output
    in_chunks: bool  # several tokens may follow others at once; False: one by one after the first read
    window: int | None  # tokens that the model was trained for; None: its config does not say
    kv_token_bytes: int  # bytes that its cache grows by with a token
    dtype: torch.dtype
    device: torch.device

    # No layer is archived.
    layers: ClassVar[int] = 0
    kv_heads: ClassVar[int] = 0
    head_dim: ClassVar[int] = 0
    keyed: ClassVar[None] = None

    @torch.no_grad()
    def read(self, tokens: Tokens, cache: Any, *, keep: int, chunk_tokens: int) -> tuple[torch.Tensor, Any]:
        """Read tokens [n] after what `cache` has seen. Return logits [keep, V] of the last ones, and the new cache.

        The given `cache` is spent. It reads `chunk_tokens` at a time, where the model takes any number.
        """
        chunk_tokens = chunk_tokens if self.in_chunks else len(tokens) if cache is None else 1
        rows: list[torch.Tensor] = []
        for first in range(0, len(tokens), chunk_tokens):
            chunk = tokens[first : first + chunk_tokens]
            left = len(tokens) - first - len(chunk)
            wanted = min(max(keep - left, 0), len(chunk))
            logits, cache = self._forward(chunk, cache, max(wanted, 1))
            rows.append(logits[-wanted:] if wanted > 0 else logits[:0])
        return torch.cat(rows), cache

    @own_rotations()
    def _forward(self, tokens: Tokens, cache: Any, keep: int) -> tuple[torch.Tensor, Any]:
        value = {} if cache is None else {self.cache_name: cache}
        out = self.model(**tokens.inputs(self.device, self.dtype), use_cache=True, logits_to_keep=keep, **value)
        return out.logits[0, -keep:], getattr(out, self.cache_name)


def text_model(model: Any, frame_tokens: int) -> TextModel:
    """Try how a model goes on reading, for a frame of at most `frame_tokens`. It is left as it was.

    Raises UnsupportedModelError where neither way gives the logits of a plain forward. Raises ValueError when the frame
    is larger than its trained window.
    """
    config = model.config.get_text_config(decoder=True)
    window: int | None = getattr(config, "max_position_embeddings", None)
    if window is not None:
        require_window(frame_tokens, window)
    require_embeddings(model, config.model_type)
    isolate_rotations(model)
    try:
        return _tried(model, window, min(_TOKENS, frame_tokens))
    except UnsupportedModelError:
        raise
    except Exception as error:  # whatever a model raises that takes other arguments, or returns something else
        raise UnsupportedModelError(
            f"{config.model_type}: it cannot be read token by token with a cache ({error!r}); models that "
            "transformers' `generate` reads so work"
        ) from error


def require_window(frame_tokens: int, window: int) -> None:
    """Raise ValueError unless no two tokens of the frame are further apart than the model was trained for."""
    if frame_tokens > window:
        raise ValueError(
            f"frame.tokens={frame_tokens} is more than the model's trained window of {window}; "
            "MemoryConfig.fitting(window) gives budgets that fit"
        )


@torch.no_grad()
@own_rotations()
def _tried(model: Any, window: int | None, tokens: int) -> TextModel:
    name = model.config.get_text_config(decoder=True).model_type
    ids = trial_ids(model, tokens)
    plain = model(input_ids=ids[None], use_cache=False).logits[0]
    out = model(input_ids=ids[None, :_FEW], use_cache=True)
    cache_name = cache_field(out)
    if cache_name is None:
        raise UnsupportedModelError(f"{name}: its output has no cache to go on from")
    few = _tensor_bytes(getattr(out, cache_name), set())
    found = TextModel(model, cache_name, True, window, 0, model.dtype, model.device)
    tolerance = _TOLERANCE.get(dtype_of_rounding(model, model.dtype), _TOLERANCE_16_BIT)
    errors = []
    for in_chunks in (True, False):
        found = dataclasses.replace(found, in_chunks=in_chunks)
        begun, cache = found.read(Tokens(ids[:_FEW]), None, keep=_FEW, chunk_tokens=_FEW)
        rest, cache = found.read(Tokens(ids[_FEW:]), cache, keep=tokens - _FEW, chunk_tokens=_FEW)
        grown = max(0, _tensor_bytes(cache, set()) - few) // (tokens - _FEW)
        errors.append(_apart(torch.cat([begun, rest]), plain))
        if errors[-1] <= tolerance:
            return dataclasses.replace(found, kv_token_bytes=grown)
    raise UnsupportedModelError(
        f"{name}: its logits are off a plain forward's by {errors[0]:.1e} of their spread when it reads {_FEW} tokens "
        f"at a time, by {errors[1]:.1e} one by one; a model works if its cache and its text give the same logits"
    )


def _apart(logits: torch.Tensor, expected: torch.Tensor) -> float:
    logits, expected = logits.double(), expected.double()
    return float((logits - expected).norm() / spread(expected))


def _tensor_bytes(value: Any, seen: set[int]) -> int:
    """Return the bytes of all tensors in it, however a model packs its cache."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(_tensor_bytes(part, seen) for part in value.values())
    if isinstance(value, list | tuple):
        return sum(_tensor_bytes(part, seen) for part in value)
    return _tensor_bytes(vars(value), seen) if hasattr(value, "__dict__") else 0
