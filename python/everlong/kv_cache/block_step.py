"""The forward of a few tokens over matrices in blocks, by one call of the core.

Where a model's matrices are blocks, a token's products take little more than half of its time on a CPU. Most of the
rest is the interpreter and some thirty small operators a layer. The core computes all layers at once, over the frame's
own buffers.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import torch

import everlong.ops as ops
from everlong.kv_cache.cache import ResidentCache
from everlong.kv_cache.phase import PhaseTap
from everlong.kv_cache.watched_model import WatchedModel
from everlong.models.attach import AttachedModel
from everlong.models.block_layers import BlockLinear
from everlong.models.custom_attention import is_overridden
from everlong.models.rotations import own_rotations
from everlong.models.tokens import Tokens
from everlong.models.trial import spread

_LOGGER = logging.getLogger("everlong")
# Models of transformers whose layers are those of everlong/weights/decoder_layers.h.
_KINDS = ("llama", "mistral", "qwen2", "qwen3")
_NORMS = ("input_layernorm", "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm")
_MATRICES = (*(f"self_attn.{name}_proj" for name in "qkvo"), *(f"mlp.{name}_proj" for name in ("gate", "up", "down")))
# The most tokens at once: a draft, or a short question. Of more, torch's attention shares what it reads.
_MOST_TOKENS = 32
# How far the logits of a model's own forward may be, as a share of their spread. Rounding may turn a number of a
# token to the next code of 8 bits, in each layer.
_TOLERANCE = 0.1


ByTheModel = Callable[[], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class _Layers:
    """A model's decoder, as `ops.decode_tokens_` takes it."""

    embed: torch.nn.Module
    norm: torch.nn.Module
    head: torch.nn.Module
    matrices: list[torch.Tensor]
    vectors: list[torch.Tensor]
    formats: list[int]
    epsilon: float
    scale: float


class BlockStep:
    """Computes a few tokens behind a cache's newest slot, as `FrameForward` does.

    It stands aside for what it cannot do. Those are models of other kinds, or in another dtype than float32, forwards
    that some slots are hidden from, or wait for, and forwards that a hook or an attention of the caller's listens to.
    """

    def __init__(self, served: AttachedModel, cache: ResidentCache, phase: PhaseTap) -> None:
        self._served, self._cache, self._phase = served, cache, phase
        self._model = WatchedModel(served)
        self._able = not cache.own and served.device.type == "cpu" and served.dtype == torch.float32
        self._layers: _Layers | None = None
        self._tried = False
        self._in_a_row = 0  # calls, since something else was computed

    def tokens(self, chunk: Tokens, position: int, by_the_model: ByTheModel, *, keep_all: bool) -> torch.Tensor | None:
        """Compute tokens from a position on, as the model counts. Return logits [1, V] of the last, or all [n, V].

        None: the caller computes them. by_the_model: does so, and leaves the cache's end. The first tokens of a model
        are computed both ways.
        """
        aside = chunk.embeds is not None or self._cache.hidden is not None or self._cache.arriving is not None
        if not self._able or not 0 < len(chunk) <= _MOST_TOKENS or aside:
            self._in_a_row = 0
            return None
        self._in_a_row += 1
        # Between two tokens of one answer nobody changes the model.
        if (self._in_a_row == 1 or len(chunk) > 1) and self._model.changed():
            self._layers, self._tried = _layers_of(self._served), False
        if self._layers is None or self._model.listened_to() or is_overridden():
            return None
        logits = self._compute(self._layers, chunk, position, keep_all=keep_all)
        if not self._tried and not self._agrees(logits, by_the_model()):
            self._layers = None
            return None
        self._tried = True
        self._cache.commit(*self._phase.newest)
        return logits

    def _compute(self, layers: _Layers, chunk: Tokens, position: int, *, keep_all: bool) -> torch.Tensor:
        """Return logits. The cache's end stays where it is."""
        cache = self._cache
        x = layers.embed(chunk.ids).contiguous()
        with own_rotations():
            self._served.rotary(x[None], torch.arange(position, position + len(chunk), device="cpu")[None])
        cos, sin = (angles.contiguous() for angles in self._phase.newest)
        where = (cache.k, cache.v, cos, sin, cache.begin, cache.end)
        ops.decode_tokens_(x, layers.matrices, layers.vectors, layers.formats, *where, layers.epsilon, layers.scale)
        logits: torch.Tensor = layers.head(layers.norm(x if keep_all else x[-1:]))
        return logits

    @staticmethod
    def _agrees(own: torch.Tensor, expected: torch.Tensor) -> bool:
        error = float(torch.linalg.vector_norm(own - expected) / spread(expected))
        agrees = error <= _TOLERANCE
        if not agrees:
            _LOGGER.info("tokens are computed module by module: in one call logits are off by %.3g", error)
        return agrees


def _layers_of(served: AttachedModel) -> _Layers | None:
    """Return the layers of a model that the core can compute; None for others."""
    model: Any = served.model
    config = model.config.get_text_config(decoder=True)
    if not type(model).__module__.startswith("transformers.models.") or config.model_type not in _KINDS:
        return None
    if model.training or config.hidden_act != "silu" or config._attn_implementation != "sdpa":
        return None
    rope = served.rope
    if served.rotated != len(model.model.layers) or rope.interleaved or rope.rotary_dim != served.head_dim:
        return None
    matrices: list[BlockLinear] = []
    vectors: list[torch.Tensor] = []
    none = torch.zeros(0)
    for layer in model.model.layers:
        of_layer = [_at(layer, name) for name in _MATRICES]
        if not all(type(matrix) is BlockLinear for matrix in of_layer):
            return None
        matrices += of_layer
        vectors += [none if (norm := _at(layer, name)) is None else norm.weight for name in _NORMS]
        vectors += [none if matrix.bias is None else matrix.bias for matrix in of_layer]
    if served.head_dim % 16 != 0 or any(x.dtype != torch.float32 or not x.is_contiguous() for x in vectors):
        return None
    return _Layers(
        model.get_input_embeddings(),
        model.model.norm,
        model.get_output_embeddings(),
        [matrix.weight for matrix in matrices],
        [vector.detach() for vector in vectors],
        [matrix.format for matrix in matrices],
        config.rms_norm_eps,
        model.model.layers[0].self_attn.scaling,
    )


def _at(layer: Any, name: str) -> Any:
    """Return the module of a layer by its name; None where there is none."""
    for part in name.split("."):
        layer = getattr(layer, part, None)
    return layer
