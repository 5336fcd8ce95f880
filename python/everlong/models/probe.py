"""What a model does with positions, measured by two short forwards of the same tokens at different positions.

With RoPE a key at position p + delta is the key at p turned by delta, in every layer. The tokens are the same, and what
they attend to stands at the same distances. So the forwards show whether a layer turns its keys, and whether our table
and our pairing turn them the same way. How the model is written does not matter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, LinearAttentionLayer

from everlong.models.hooks import register_hook
from everlong.models.releases import cache_argument
from everlong.models.rope import NO_ROPE, RopeTable, turn_keys
from everlong.models.trial import trial_ids

DELTA = 37  # positions between the two forwards


@dataclasses.dataclass(frozen=True)
class Probe:
    """Keys fp32 [1, Hkv, T, D] by layer of the model, of the same tokens at two places; outputs of tapped modules."""

    keys: dict[int, torch.Tensor]
    moved: dict[int, torch.Tensor]  # DELTA positions further on
    values: dict[int, torch.Tensor]
    tapped: dict[int, torch.Size]  # shape of what each tapped module returned
    tokens: int  # T
    linear_bytes: int  # bytes of the state of all linear-attention layers, which has one size

    def error(self, layer: int, table: RopeTable) -> float:
        """Return the error of turning the layer's keys by `table`: 0 is exact, about 1 is no agreement at all."""
        keys, moved = self.keys[layer], self.moved[layer]
        turned = turn_keys(keys, table, DELTA)
        scale = float(moved.norm())
        return float((turned - moved).norm()) / scale if scale > 0 else 0.0

    def best(self, layer: int, table: RopeTable) -> tuple[RopeTable, float]:
        """Return the table itself or no rotation at all, whichever the layer does, and its error."""
        own, none = self.error(layer, table), self.error(layer, NO_ROPE)
        return (NO_ROPE, none) if none < own else (table, own)


class ProbeError(Exception):
    """The model does not do what everlong relies on. The message says what, and what would work."""


@torch.no_grad()
def probe(
    model: Any,
    config: Any,
    first: int,
    query_heads: int,
    rotary: torch.nn.Module,
    taps: Mapping[int, torch.nn.Module],
) -> Probe:
    """Run T tokens at positions first, first + 1 ... and again DELTA further on. T is not the number of heads.

    Raises ProbeError when that fails, or when the forward does not ask `rotary` for its cos and sin.
    """
    tokens = 5 if query_heads != 5 else 6
    ids = trial_ids(model, tokens)[None]
    tapped: dict[int, torch.Size] = {}
    asked: list[bool] = []
    own_thread = threading.get_ident()  # others may use the model meanwhile

    def keep(layer: int) -> Any:
        def hook(module: torch.nn.Module, args: object, output: torch.Tensor) -> None:
            if threading.get_ident() == own_thread:
                tapped[layer] = output.shape

        return hook

    def record(*call: object) -> None:
        if threading.get_ident() == own_thread:
            asked.append(True)

    caches = []
    with contextlib.ExitStack() as hooks:
        hooks.callback(register_hook(rotary.register_forward_hook, record).remove)
        for layer, module in taps.items():
            hooks.callback(register_hook(module.register_forward_hook, keep(layer)).remove)
        for start in (first, first + DELTA):
            cache = DynamicCache(config=config)
            positions = torch.arange(start, start + tokens, device=ids.device)[None]
            try:
                value = {cache_argument(model): cache}
                model(input_ids=ids, position_ids=positions, **value, use_cache=True, logits_to_keep=1)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
                raise ProbeError(
                    f"a forward with position_ids over transformers' DynamicCache fails, {type(error).__name__}: "
                    f"{error}; models that allow both work"
                ) from error
            caches.append(cache)
    if not asked:
        raise ProbeError("it does not ask the `rotary_emb` of its decoder for cos and sin; models built like Llama do")

    def states_of(cache: DynamicCache, name: str) -> dict[int, torch.Tensor]:
        return {
            index: getattr(layer, name).float().cpu()
            for index, layer in enumerate(cache.layers)
            if isinstance(layer, DynamicLayer) and layer.is_initialized
        }

    states = [
        state
        for layer in caches[0].layers
        if isinstance(layer, LinearAttentionLayer)
        for by_index in (layer.conv_states, layer.recurrent_states)
        for state in by_index.values()
        if state is not None
    ]
    return Probe(
        keys=states_of(caches[0], "keys"),
        moved=states_of(caches[1], "keys"),
        values=states_of(caches[0], "values"),
        tapped=tapped,
        tokens=tokens,
        linear_bytes=sum(state.numel() * state.element_size() for state in states),
    )
