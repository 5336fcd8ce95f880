"""The forward of a few tokens over matrices in blocks, by one call of the core.

Where a model's matrices are blocks, a token's products take little more than half of its time on a CPU. Most of the
rest is the interpreter and some thirty small operators a layer. The core computes all layers at once, over the frame's
own buffers.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.activations import SiLUActivation

import everlong.ops as ops
from everlong.kv_cache.cache import ResidentCache
from everlong.kv_cache.phase import PhaseTap
from everlong.kv_cache.watched_model import ModelMark, WatchedModel
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
MOST_TOKENS = 32
# How far the logits of a model's own forward may be, as a share of their spread. Rounding may turn a number of a
# token to the next code of 8 bits, in each layer.
_TOLERANCE = 0.1


@dataclasses.dataclass(frozen=True)
class StepTokens:
    """Tokens of one frame, from a position on as the model counts."""

    chunk: Tokens
    position: int
    keep_all: bool  # whether logits of all are wanted, and not only of the last


@dataclasses.dataclass(frozen=True)
class _Layers:
    """A model's decoder, as `ops.decode_tokens_` takes it."""

    embed: torch.nn.Module
    norm: torch.nn.Module
    head: torch.nn.Module
    matrices: list[torch.Tensor]
    vectors: list[torch.Tensor]
    formats: list[int]
    norms: list[tuple[Any, Any]]  # the attention of its layer, and a norm
    numbers: list[float]  # of these: 1 / the root of D or another scale of q . k, and what the norm adds

    @property
    def scale(self) -> float:
        return self.numbers[0]

    @property
    def epsilon(self) -> float:
        return self.numbers[1]


# The state in which a model's logits were those of its own forward.
_agreed: weakref.WeakKeyDictionary[Any, ModelMark] = weakref.WeakKeyDictionary()


class BlockStep:
    """Computes a few tokens behind a cache's newest slot, as `FrameForward` does. It leaves the cache's end.

    It stands aside for what it cannot do. Those are models of other kinds, or in another dtype than float32, forwards
    that some slots are hidden from, or wait for, and forwards that a hook or an attention of the caller's listens to.
    """

    def __init__(self, served: AttachedModel, cache: ResidentCache, phase: PhaseTap) -> None:
        self._served, self._cache, self._phase = served, cache, phase
        self._model = WatchedModel(served)
        self._able = not cache.own and served.device.type == "cpu" and served.dtype == torch.float32
        self._layers: _Layers | None = None
        self._tried = False

    def takes(self, chunk: Tokens) -> bool:
        """Return whether it computes these tokens, if the model was tried."""
        aside = chunk.embeds is not None or self._cache.hidden is not None or self._cache.arriving is not None
        if not self._able or not 0 < len(chunk) <= MOST_TOKENS or aside:
            return False
        if self._model.changed() or (
            self._layers is not None and self._layers.numbers != _numbers_of(self._layers.norms)
        ):
            self._layers, self._tried = _layers_of(self._served), False
        return self._layers is not None and not self._model.listened_to() and not is_overridden()

    def tried(self, part: StepTokens, by_the_model: Callable[[], torch.Tensor]) -> bool:
        """Return whether the logits of tokens are those of the model's own forward.

        Where nobody knows yet of this model, both are computed.
        """
        if self._tried:
            return True
        mark = self._model.mark()
        if _agreed.get(self._served.model) != mark:
            expected = by_the_model()
            found = self.compute_batch([self], [part])[0][0]
            error = float(torch.linalg.vector_norm(found - expected) / spread(expected))
            if not error <= _TOLERANCE:
                _LOGGER.info("tokens are computed module by module: in one call logits are off by %.3g", error)
                self._layers = None
                return False
            _agreed[self._served.model] = mark
        self._tried = True
        return True

    def tokens(
        self, chunk: Tokens, position: int, by_the_model: Callable[[], torch.Tensor], *, keep_all: bool
    ) -> torch.Tensor | None:
        """Compute tokens from a position on, as the model counts. Return logits [1, V] of the last, or all [n, V].

        None: the caller computes them, by_the_model.
        """
        part = StepTokens(chunk, position, keep_all)
        if not self.takes(chunk) or not self.tried(part, by_the_model):
            return None
        return self.compute_batch([self], [part])[0][0]

    @staticmethod
    def compute_batch(steps: Sequence[BlockStep], parts: Sequence[StepTokens]) -> list[tuple[torch.Tensor, slice]]:
        """Compute tokens of several frames of one model, which each of them `takes`.

        Return the logits of each, and where its tokens stand in the rotation of this forward.
        """
        first = steps[0]
        layers = first._layers
        assert layers is not None
        counts = [len(one.chunk) for one in parts]
        ends = [*itertools.accumulate(counts)]
        positions = [torch.arange(one.position, one.position + len(one.chunk), device="cpu") for one in parts]
        x = layers.embed(torch.cat([one.chunk.ids for one in parts])).contiguous()
        with own_rotations():
            first._served.rotary(x[None], torch.cat(positions)[None])
        cos, sin = (angles.contiguous() for angles in first._phase.newest)
        caches = [step._cache for step in steps]
        spans = [n for cache, count in zip(caches, counts, strict=True) for n in (cache.begin, cache.end, count)]
        buffers = ([cache.k for cache in caches], [cache.v for cache in caches], spans)
        ops.decode_tokens_(
            x, layers.matrices, layers.vectors, layers.formats, *buffers, cos, sin, layers.epsilon, layers.scale
        )
        kept = [count if one.keep_all else 1 for one, count in zip(parts, counts, strict=True)]
        rows = [at for end, count in zip(ends, kept, strict=True) for at in range(end - count, end)]
        logits = torch.split(layers.head(layers.norm(x[rows])), kept)
        return [(own, slice(end - n, end)) for own, end, n in zip(logits, ends, counts, strict=True)]


def _layers_of(served: AttachedModel) -> _Layers | None:
    """Return the layers of a model that the core can compute; None for others."""
    model: Any = served.model
    config = model.config.get_text_config(decoder=True)
    if not type(model).__module__.startswith("transformers.models.") or config.model_type not in _KINDS:
        return None
    if model.training or config._attn_implementation != "sdpa":
        return None
    rope = served.rope
    if served.rotated != len(model.model.layers) or rope.interleaved or rope.rotary_dim != served.head_dim:
        return None
    matrices: list[BlockLinear] = []
    vectors: list[torch.Tensor] = []
    none = torch.zeros(0)
    for layer in model.model.layers:
        of_layer = [_at(layer, name) for name in _MATRICES]
        plain = all(type(matrix) is BlockLinear for matrix in of_layer)
        if not plain or type(layer.mlp.act_fn) not in (torch.nn.SiLU, SiLUActivation):
            return None
        matrices += of_layer
        vectors += [none if (norm := _at(layer, name)) is None else norm.weight for name in _NORMS]
        vectors += [none if matrix.bias is None else matrix.bias for matrix in of_layer]
    layers = model.model.layers
    norms = [(layer.self_attn, norm) for layer in layers for name in _NORMS if (norm := _at(layer, name)) is not None]
    numbers = _numbers_of(norms)
    if len(set(numbers[::2])) != 1 or len(set(numbers[1::2])) != 1:
        return None
    if served.head_dim % 16 != 0 or any(x.dtype != torch.float32 or not x.is_contiguous() for x in vectors):
        return None
    return _Layers(
        model.get_input_embeddings(),
        model.model.norm,
        model.get_output_embeddings(),
        [matrix.weight for matrix in matrices],
        [vector.detach() for vector in vectors],
        [matrix.format for matrix in matrices],
        norms,
        numbers,
    )


def _numbers_of(norms: Sequence[tuple[Any, Any]]) -> list[float]:
    """Return numbers that no tensor has: of each norm its attention's scale, and what it adds."""
    return [number for attention, norm in norms for number in (attention.scaling, norm.variance_epsilon)]


def _at(layer: Any, name: str) -> Any:
    """Return the module of a layer by its name; None where there is none."""
    for part in name.split("."):
        layer = getattr(layer, part, None)
    return layer
