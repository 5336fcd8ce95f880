"""Finds in a HuggingFace model what everlong needs, and refuses a model that it cannot serve exactly.

Layers of full attention are archived and restored. Layers with a sliding window and layers of linear attention keep a
state of their own, as transformers' cache layers do. What the config says about positions is measured on the model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from everlong.errors import UnsupportedModelError
from everlong.models.block_layers import dtype_of_rounding
from everlong.models.placement import device_of
from everlong.models.probe import DELTA, Probe, ProbeError, probe
from everlong.models.releases import EMPTY_LAYERS, rotary_positions
from everlong.models.rope import NO_ROPE, RopeTable, first_position, has_layer_tables, rope_table
from everlong.models.rotations import isolate_rotations, own_rotations
from everlong.models.text_model import require_window

_PHASE_TOLERANCE = 1e-3  # radians, about, on top of what rounding an angle of HF's to fp32 adds
# Relative error of a key: what 16-bit arithmetic of many layers may do. A wrong pairing or table makes about 1.
_KEY_TOLERANCE = {torch.float32: 0.01, torch.float64: 0.01}
_KEY_TOLERANCE_16_BIT = 0.1
_QUERY_MODULES = ("q_norm", "q_layernorm", "q_proj", "qkv_proj")  # the last one before the rotation comes first


@dataclasses.dataclass(frozen=True)
class OwnState:
    """Bytes that the state of the layers that are not archived may take."""

    windows: tuple[tuple[int, int], ...]  # of each sliding layer: tokens that it sees, bytes of K and V a token
    fixed: int  # of all linear-attention layers

    def bytes(self, chunk_tokens: int) -> int:
        """Return the bytes while such chunks are read: a window holds a chunk more, and each chunk makes it anew."""
        each = [(window - 1 + chunk_tokens) * token for window, token in self.windows]
        return sum(each) + max(each, default=0) + self.fixed


@dataclasses.dataclass(frozen=True)
class AttachedModel:
    """The anatomy of a model. "Layer" without "of the model" counts the archived ones, in the order of `archived`."""

    model: Any
    archived: tuple[int, ...]  # layers of the model with full attention: those that rotate their keys, then NoPE ones
    rotated: int  # how many of `archived` rotate their keys
    sliding: Mapping[int, RopeTable]  # layers of the model with a window of their own, and how they rotate
    attention: tuple[torch.nn.Module, ...]  # modules of `archived`
    rotary: torch.nn.Module
    layer_type: str | None  # name of the archived layers' table in the rotary embedding; None: it has one table
    phase_columns: slice  # of the rotary embedding's cos and sin: one number a pair
    rope: RopeTable  # of the rotated layers
    first_position: int  # the position that the model is told for frame position 0
    query_heads: int  # Hq
    kv_heads: int  # Hkv
    head_dim: int  # D
    heads_first: bool  # queries come as [1, Hq, T, D], not as [1, T, ...]
    window: int  # tokens the model was trained for
    own_state: OwnState
    dtype: torch.dtype
    device: torch.device

    @property
    def layers(self) -> int:
        return len(self.archived)

    @property
    def keyed(self) -> AttachedModel:
        """This model, which knows queries and keys of its archived layers."""
        return self

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of keys and values of one token in the model's own format."""
        size: int = self.layers * 2 * self.kv_heads * self.head_dim * self.dtype.itemsize
        return size

    def table(self, layer: int) -> RopeTable:
        """Return how an archived layer rotates its keys."""
        return self.rope if layer < self.rotated else NO_ROPE

    def score_scale(self, layer: int) -> float:
        """Return what attention multiplies q.k with, beyond the 1/sqrt(D) that the index applies."""
        scaling: float = getattr(self.attention[layer], "scaling", self.head_dim**-0.5)
        return scaling * math.sqrt(self.head_dim)

    def query_module(self, layer: int) -> torch.nn.Module:
        """Return the module that outputs the layer's un-rotated q: the last one before the rotation."""
        module = _query_module(self.attention[layer])
        assert module is not None
        return module

    def queries(self, output: torch.Tensor) -> torch.Tensor:
        """Return q [T, Hq, D] from what a `query_module` returned."""
        if self.heads_first:
            return output[0].transpose(0, 1)
        rows = output[0].flatten(1)  # a fused projection has q before k and v
        return rows[:, : self.query_heads * self.head_dim].reshape(-1, self.query_heads, self.head_dim)

    def own_layers(self) -> dict[int, Any]:
        """Return new, empty cache layers for the layers of the model that are not archived."""
        config = self.model.config.get_text_config(decoder=True)
        cache = DynamicCache(config=config)
        return {index: layer for index, layer in enumerate(cache.layers) if index not in self.archived}


def trained_window(model: Any) -> int:
    """Return the tokens the model was trained for. Raise UnsupportedModelError where its config names none."""
    config = model.config.get_text_config(decoder=True)
    window: int | None = getattr(config, "max_position_embeddings", None)
    if window is None:
        raise UnsupportedModelError(
            f"{config.model_type}: its config has no max_position_embeddings; models with rotary positions, built like "
            "Llama or Qwen3, work"
        )
    return window


def decoder_layers(model: Any) -> tuple[torch.nn.Module, torch.nn.ModuleList]:
    """Return the decoder, which ends with the final norm, and its layers in order.

    Raise UnsupportedModelError where it has no list with as many modules as its config names layers.
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in decoder.modules():
        for child in module.children():
            if isinstance(child, torch.nn.ModuleList) and len(child) == count:
                return decoder, child
    raise UnsupportedModelError(f"{model.config.model_type}: its decoder has no list of its {count} layers")


@own_rotations()
def attach(model: Any, frame_tokens: int) -> AttachedModel:
    """Read a model's anatomy for a frame of at most `frame_tokens`.

    Raises UnsupportedModelError where the model cannot be served exactly. It says the reason and what would work.
    Raises ValueError where the frame is larger than its trained window: the model never sees two tokens further apart.
    """
    config = model.config.get_text_config(decoder=True)
    name = config.model_type
    window = trained_window(model)
    require_window(frame_tokens, window)
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    modules = getattr(decoder, "layers", None)
    rotary = getattr(decoder, "rotary_emb", None)
    if modules is None or not isinstance(rotary, torch.nn.Module):
        raise UnsupportedModelError(
            f"{name}: no `layers` and `rotary_emb` in its decoder; models built like Llama or Qwen3 work"
        )
    device = device_of(model, modules, name)
    isolate_rotations(rotary)
    tables = _tables(config, frame_tokens)
    archived, sliding = kinds_of_layers(config, name, frame_tokens)
    attention = {index: _attention(modules[index], name, index) for index in archived}
    first = first_position(config, frame_tokens)
    query_heads = config.per_layer_config[archived[0]].num_attention_heads
    taps = {index: _require_query(attention[index], name) for index in archived}
    try:
        seen = probe(model, config, first, query_heads, rotary, taps)
    except ProbeError as error:
        raise UnsupportedModelError(f"{name}: {error}") from error

    rounding = dtype_of_rounding(model, model.dtype)
    rope_of = {index: _measured(seen, index, tables[index], name, rounding) for index in (*archived, *sliding)}
    rotated = [index for index in archived if rope_of[index].rotary_dim > 0]
    order = (*rotated, *(index for index in archived if rope_of[index].rotary_dim == 0))
    kv_heads, head_dim = _key_shape(seen, archived, name)
    layer_type = config.layer_types[archived[0]] if has_layer_tables(config) else None
    rope = tables[archived[0]] if rotated else NO_ROPE
    columns = slice(0, 0)
    for index in _one_of_each_table(rope_of):
        found = _phase_columns(rotary, rope_of[index], config, index, first, frame_tokens, device)
        columns = found if rope_of[index] == rope else columns
    return AttachedModel(
        model=model,
        archived=order,
        rotated=len(rotated),
        sliding={index: rope_of[index] for index in sliding},
        attention=tuple(attention[index] for index in order),
        rotary=rotary,
        layer_type=layer_type,
        phase_columns=columns,
        rope=rope,
        first_position=first,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        heads_first=_heads_first(seen, query_heads, head_dim, name),
        window=window,
        own_state=_own_state(seen, sliding, config, model.dtype),
        dtype=model.dtype,
        device=device,
    )


def _tables(config: Any, frame_tokens: int) -> list[RopeTable]:
    """Return the tables by layer of the model, as its config has them."""
    types = getattr(config, "layer_types", None) or [None] * config.num_hidden_layers
    by_type: dict[str | None, RopeTable] = {}
    nested = has_layer_tables(config)
    for layer_type in types:
        has_positions = not nested or layer_type in config.rope_parameters
        if layer_type not in by_type:
            by_type[layer_type] = rope_table(config, layer_type, frame_tokens) if has_positions else NO_ROPE
    return [by_type[layer_type] for layer_type in types]


def kinds_of_layers(config: Any, name: str, frame_tokens: int) -> tuple[list[int], list[int]]:
    """Return the layers of the model that are archived, and those with a sliding window of their own."""
    types = getattr(config, "layer_types", None) or []
    archived, sliding = [], []
    for index, layer in enumerate(DynamicCache(config=config).layers):
        kind = types[index] if types else type(layer).__name__
        if type(layer) is DynamicSlidingWindowLayer and kind != "chunked_attention":
            sliding.append(index)
        elif type(layer) is DynamicLayer:
            archived.append(index)
        elif type(layer) not in (LinearAttentionLayer, *EMPTY_LAYERS):  # an empty one has no keys of its own
            raise UnsupportedModelError(
                f"{name}: layer {index} is of the kind {kind}; full attention, sliding windows and linear attention "
                "work"
            )
    if not archived and sliding:
        # A window no shorter than the frame hides nothing of it. To a frame such layers are full attention.
        if frame_tokens > config.sliding_window:
            raise UnsupportedModelError(
                f"{name}: every layer sees only the newest {config.sliding_window} tokens, so that nothing recalled "
                f"would be seen; a frame of at most {config.sliding_window} tokens works, frame.tokens={frame_tokens}"
            )
        archived, sliding = sliding, []
    if not archived:
        raise UnsupportedModelError(f"{name}: no layer of full attention; a memory needs at least one")
    return archived, sliding


def _attention(layer: torch.nn.Module, name: str, index: int) -> torch.nn.Module:
    module = getattr(layer, "self_attn", None)
    if not isinstance(module, torch.nn.Module):
        raise UnsupportedModelError(f"{name}: layer {index} has no `self_attn`; models built like Llama or Qwen3 work")
    return module


def _query_module(attention: torch.nn.Module) -> torch.nn.Module | None:
    for name in _QUERY_MODULES:
        module = getattr(attention, name, None)
        if isinstance(module, torch.nn.Module) and not isinstance(module, torch.nn.Identity):
            return module
    return None


def _require_query(attention: torch.nn.Module, name: str) -> torch.nn.Module:
    module = _query_module(attention)
    if module is None:
        raise UnsupportedModelError(
            f"{name}: its attention has none of {', '.join(_QUERY_MODULES)}, where its queries could be read"
        )
    return module


def _measured(seen: Probe, index: int, table: RopeTable, name: str, dtype: torch.dtype) -> RopeTable:
    """Return how a layer of the model turns its keys: by its table, or not at all. Refuse one that does neither."""
    if index not in seen.keys:
        raise UnsupportedModelError(f"{name}: layer {index} puts no keys of its own into the cache; every layer must")
    found, error = seen.best(index, table)
    if error > _KEY_TOLERANCE.get(dtype, _KEY_TOLERANCE_16_BIT):
        pairs = "interleaved" if table.interleaved else "half-split"
        raise UnsupportedModelError(
            f"{name}: the keys of layer {index}, moved by {DELTA} positions, are off by {error:.1e} from RoPE with "
            f"{pairs} pairs as its config describes it; a model whose keys turn so, or not at all, works"
        )
    return found


def _key_shape(seen: Probe, archived: list[int], name: str) -> tuple[int, int]:
    """Return Hkv and D, which all archived layers share, in k and in v."""
    shapes = {(keys.shape[1], keys.shape[3]) for index in archived for keys in (seen.keys[index], seen.values[index])}
    if len(shapes) > 1:
        raise UnsupportedModelError(
            f"{name}: keys and values of its full-attention layers have the shapes [heads, head_dim] {sorted(shapes)}; "
            "one shape for all works"
        )
    return next(iter(shapes))


def _own_state(seen: Probe, sliding: list[int], config: Any, dtype: torch.dtype) -> OwnState:
    layers = DynamicCache(config=config).layers
    windows = []
    for index in sliding:
        numbers = sum(states.shape[1] * states.shape[3] for states in (seen.keys[index], seen.values[index]))
        window = int(layers[index].sliding_window)  # type: ignore[union-attr]  # `sliding` are those that have one
        windows.append((window, numbers * dtype.itemsize))
    return OwnState(tuple(windows), seen.linear_bytes)


def _heads_first(seen: Probe, heads: int, head_dim: int, name: str) -> bool:
    """Return whether queries come as [1, Hq, T, D]. The probe's T differs from Hq."""
    shapes = set(seen.tapped.values())
    for shape in shapes:
        if shape == (1, heads, seen.tokens, head_dim):
            continue
        rows = len(shape) >= 3 and shape[:2] == (1, seen.tokens)
        if not rows or math.prod(shape[2:]) < heads * head_dim:
            raise UnsupportedModelError(
                f"{name}: its queries come in the shape {tuple(shape)}; [1, T, heads * head_dim] or [1, heads, T, "
                "head_dim] work"
            )
    return any(shape == (1, heads, seen.tokens, head_dim) for shape in shapes)


def _one_of_each_table(rope_of: Mapping[int, RopeTable]) -> list[int]:
    """Return a layer of the model for each way to rotate."""
    return list({table: index for index, table in rope_of.items() if table.rotary_dim > 0}.values())


@torch.no_grad()
def _phase_columns(
    rotary: torch.nn.Module, table: RopeTable, config: Any, index: int, first: int, frame_tokens: int, device: Any
) -> slice:
    """Check that the model's cos and sin are the table's, up to the frame's end. Return the columns that hold them."""
    layer_type = (config.layer_types[index],) if has_layer_tables(config) else ()
    # The frame's end is among them: a table that depends on the longest position of a call shows there.
    positions = torch.tensor([[0, 1, 17 % frame_tokens, frame_tokens - 1]], device=device) + first
    dummy = torch.zeros(1, 1, 1, dtype=torch.float32, device=device)
    cos, sin = (x[0].double().cpu() for x in rotary(dummy, rotary_positions(rotary, positions), *layer_type))
    angles = positions[0].double().cpu()[:, None] * table.inv_freq[None, :]
    half = table.rotary_dim // 2
    best, columns = math.inf, slice(0, half)
    for candidate in (slice(0, half), slice(0, 2 * half, 2)):
        if cos[:, candidate].shape != angles.shape:
            continue
        pairs = ((cos, angles.cos()), (sin, angles.sin()))
        error = max(float((got[:, candidate] - true * table.attention_scaling).abs().max()) for got, true in pairs)
        if error < best:
            best, columns = error, candidate
    if best > _PHASE_TOLERANCE + 2.0**-24 * (first + frame_tokens):
        rounded = any(buffer.dtype != torch.float32 for buffer in rotary.buffers())
        raise UnsupportedModelError(
            f"{config.model_type}: its rotary embedding differs from the one its config describes by {best:.1e}; "
            + (
                "its frequencies were rounded, as `model.to(dtype)` does; from_pretrained(..., dtype=...) works"
                if rounded
                else "a model whose cos and sin are those of modeling_rope_utils works"
            )
        )
    return columns
