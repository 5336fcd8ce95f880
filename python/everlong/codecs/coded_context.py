"""A context whose keys and values are coded, and what a model says behind it: by how much a codec changes that."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

import everlong._core as _core
from everlong import ops
from everlong.models.attach import AttachedModel
from everlong.models.releases import cache_argument

PAGE = 64
SINKS, NEWEST = 16, 64  # tokens that stay exact


@dataclasses.dataclass(frozen=True)
class Divergence:
    """How near what a model says behind a coded context is to what it says behind the exact one."""

    kl: float  # mean over tokens, nats
    nats_lost: float  # of the text that follows, a token
    same_token: float  # share of tokens whose likeliest next token is the same


@dataclasses.dataclass(frozen=True)
class CodedContext:
    """A context that a model has read, and what follows it."""

    served: AttachedModel
    cache: DynamicCache  # of the context; nobody changes it
    k: torch.Tensor  # [layers, heads, tokens, head_dim] of the archived layers, un-rotated, fp32, on the CPU
    v: torch.Tensor
    after: torch.Tensor  # ids behind it
    exact: torch.Tensor  # log-probabilities [n, V] of the token behind each of `after`

    @classmethod
    @torch.no_grad()
    def read(cls, served: AttachedModel, ids: torch.Tensor, tokens: int) -> CodedContext:
        """Read `tokens` of ids [n]; the others follow, if any do."""
        cache: Any = DynamicCache(config=served.model.config.get_text_config(decoder=True))
        _forward(served, cache, ids[:tokens], 0)
        keys, values = ([_of(cache, layer, name) for layer in served.archived] for name in ("keys", "values"))
        positions = torch.arange(tokens, dtype=torch.float64) + served.first_position
        plain = [_unrotated(x, served, number, positions) for number, x in enumerate(keys)]
        context = cls(served, cache, torch.stack(plain), torch.stack(values), ids[tokens:], torch.empty(0))
        return dataclasses.replace(context, exact=context._log_probs(context.cache)) if len(context.after) else context

    @torch.no_grad()
    def nearness(self, k: torch.Tensor, v: torch.Tensor) -> Divergence:
        """Compare what follows where keys and values are these, but for sinks and newest."""
        exact, got = self.exact, self._log_probs(self._with(k, v))
        log_probs = self.after[1:, None]
        lost = exact[:-1].gather(1, log_probs) - got[:-1].gather(1, log_probs)
        return Divergence(
            kl=float((exact.exp() * (exact - got)).sum(-1).mean()),
            nats_lost=float(lost.mean()),
            same_token=float((exact.argmax(-1) == got.argmax(-1)).float().mean()),
        )

    def _with(self, k: torch.Tensor, v: torch.Tensor) -> Any:
        cache: Any = copy.deepcopy(self.cache)
        tokens, first = k.shape[2], self.served.first_position
        inside = slice(SINKS, tokens - NEWEST)
        for number, layer in enumerate(self.served.archived):
            table = self.served.table(number)
            keys = k[number][None].contiguous()
            if table.rotary_dim > 0:
                positions = torch.arange(first, first + tokens)
                keys, _ = ops.rerotate_kv(
                    keys, keys, positions, table.inv_freq, table.attention_scaling, table.interleaved
                )
            for name, x in (("keys", keys[0]), ("values", v[number])):
                held = getattr(cache.layers[layer], name)
                held[0, :, inside] = x[:, inside].to(held)
        return cache

    def _log_probs(self, cache: Any) -> torch.Tensor:
        return _forward(self.served, copy.deepcopy(cache), self.after, self.k.shape[2])


@contextlib.contextmanager
def held_in_memory(k: torch.Tensor, v: torch.Tensor, weights: str = "") -> Iterator[_core.Memory]:
    """Give a memory in RAM whose one block has these keys and values, as fp32."""
    layers, heads, tokens, dim = k.shape
    manifest = _core.Manifest(
        weights=weights,
        rope="",
        tokenizer="",
        layers=layers,
        kv_heads=heads,
        head_dim=dim,
        page_tokens=PAGE,
        codec="fp32",
    )
    core = _core.Memory.create(None, manifest)
    try:
        core.blocks.append(
            stream=0,
            begin=0,
            end=tokens,
            sink_tokens=0,
            source="",
            created_at=0.0,
            tags=[],
            token_ids=np.zeros(tokens, np.int32),
            payload=ops.encode_kv(k, v, PAGE, "fp32").numpy(),
        )
        yield core
    finally:
        core.close()


def through_memory(
    k: torch.Tensor, v: torch.Tensor, codec: str, tables: bytes | None = None, *, weights: str = ""
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return keys and values as a memory gives them back that codes them so, and the bytes of a token.

    `tables` are those of a transform, of the model with this fingerprint of its weights.
    """
    layers, heads, tokens, dim = k.shape
    with held_in_memory(k, v, weights) as core:
        core.upkeep.recode(1, codec if tables is None else core.upkeep.put_transform(tables))
        read_as, pages = core.blocks.read_codec(1), core.blocks.pages()
        out = np.empty(sum(core.page_bytes(page.end - page.begin, read_as) for page in pages), np.uint8)
        core.blocks.read_pages(pages, out, read_as)
        size = core.blocks.info(1).payload_bytes / tokens
    coded = ops.decode_kv(torch.from_numpy(out), layers, heads, tokens, dim, PAGE, read_as, torch.float32)
    return *coded, size


def _forward(served: AttachedModel, cache: Any, ids: torch.Tensor, before: int) -> torch.Tensor:
    positions = torch.arange(before, before + len(ids), device=served.device)[None] + served.first_position
    out = served.model(
        input_ids=ids[None].to(served.device),
        position_ids=positions,
        **{cache_argument(served.model): cache},
        use_cache=True,
        logits_to_keep=0 if before > 0 else 1,
    )
    return torch.log_softmax(out.logits[0].float(), -1).cpu()


def _of(cache: Any, layer: int, name: str) -> torch.Tensor:
    held: torch.Tensor = getattr(cache.layers[layer], name)
    return held[0].float().cpu()


def _unrotated(keys: torch.Tensor, served: AttachedModel, number: int, positions: torch.Tensor) -> torch.Tensor:
    """Return keys [heads, tokens, head_dim] without their rotation."""
    table = served.table(number)
    if table.rotary_dim == 0:
        return keys
    angles = positions[:, None] * table.inv_freq.double()[None]
    half = [(x * table.attention_scaling).float() for x in (angles.cos(), angles.sin())]
    cos, sin = (x.repeat_interleave(2, dim=-1) if table.interleaved else torch.cat([x, x], dim=-1) for x in half)
    unrotated, _ = ops.derotate_kv(keys[None].contiguous(), keys[None].contiguous(), cos, sin, table.interleaved)
    return unrotated[0]
