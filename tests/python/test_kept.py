"""The zone "kept" against plain transformers: what was trimmed is there and masked, what moved has its position named.

The reference is logical trimming. It keeps every token's keys and values, hands all of them to the model in each
forward, and a 4D mask hides those that are trimmed; positions are the compact ones of the frame.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from transformers.cache_utils import DynamicCache

import everlong
from everlong.models.cache_argument import cache_argument
from test_anchors import Array
from test_exactness import SMALL, TOLERANCE, random_text
from tiny_models import byte_tokenizer, tiny_model

KEPT = dataclasses.replace(
    SMALL, kept_tokens=32, kept_share=8, kept_rungs=3, trimmer="key_norm", index=("lexical",), recall_mode="kv"
)
CHUNK = 48
SHAPES = [("llama", "default"), ("qwen3", "yarn"), ("gemma3", "nested")]


class Masked:
    """Logical trimming in fp64: which tokens the model may see, and at which position each of them stands.

    It is told which tokens were chosen, the best first, and knows the ladder by its definition.
    """

    def __init__(self, mm: everlong.MemoryModel) -> None:
        self.model, self.served, self.config = mm.model, mm.frame.served, mm.config
        layers = range(mm.model.config.num_hidden_layers)
        self.keys: dict[int, list[Array]] = {index: [] for index in layers}  # by token: [Hkv, D], un-rotated
        self.values: dict[int, list[Array]] = {index: [] for index in layers}
        self.left = self.config.sink_tokens  # tokens before it have left, but for the sinks and what is kept
        self.evicted = False
        self.blocks: list[tuple[int, list[int], int]] = []  # length, chosen tokens (best first), rung
        self.recalled: list[int] = []

    @property
    def tokens(self) -> int:
        return len(self.keys[0])

    def frequencies(self, index: int) -> Array:
        rotary = self.model.model.rotary_emb
        types = getattr(self.model.config, "layer_types", None)
        name = f"{types[index]}_inv_freq" if types and hasattr(rotary, f"{types[index]}_inv_freq") else "inv_freq"
        return np.asarray(getattr(rotary, name).double())

    def rotate(self, index: int, keys: Array, positions: Array, sign: int = 1) -> Array:
        """keys [n, Hkv, D] at positions [n], halves paired; sign -1 undoes it."""
        angles = positions[:, None] * self.frequencies(index)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        half = cos.shape[-1]
        first, second = keys[..., :half], keys[..., half : 2 * half]
        out = keys.copy()
        out[..., :half] = first * cos - sign * second * sin
        out[..., half : 2 * half] = second * cos + sign * first * sin
        m = self.served.rope.attention_scaling
        out[..., : 2 * half] *= m if sign > 0 else 1 / m
        return out

    def kept(self) -> list[int]:
        """Ladder by its definition: over all that was chosen and left, oldest of the first rung over its share."""
        return sorted(token for _, tokens, _ in self.blocks for token in tokens if token < self.left)

    def trim_again(self) -> None:
        c = self.config
        while len(self.kept()) > c.kept_tokens:
            held = [
                sum(t < self.left for _, ts, r in self.blocks if r == rung for t in ts) for rung in range(c.kept_rungs)
            ]
            rung = next(rung for rung in range(c.kept_rungs) if held[rung] > c.kept_tokens / c.kept_rungs)
            at = next(i for i, block in enumerate(self.blocks) if block[2] == rung)
            length, tokens, _ = self.blocks[at]
            if rung + 1 == c.kept_rungs:
                del self.blocks[at]
            else:
                self.blocks[at] = (length, tokens[: -(-length // (c.kept_share << rung + 1))], rung + 1)

    def positions(self) -> dict[int, int]:
        """Of every token that may be seen, in the frame."""
        c = self.config
        if not self.evicted:
            return {token: token for token in range(self.tokens)}
        at = {token: token for token in range(c.sink_tokens)}
        shown = [token for token in self.kept() if token not in self.recalled]
        at |= {token: c.sink_tokens + i for i, token in enumerate(shown)}
        rolling = c.sink_tokens + c.kept_tokens + c.recalled_tokens
        at |= {token: rolling - len(self.recalled) + i for i, token in enumerate(self.recalled)}
        return at | {token: rolling + token - self.left for token in range(self.left, self.tokens)}

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [n, V] of what comes next; the caller trims and evicts."""
        at, total, n = self.positions(), self.tokens, len(ids)
        rolling = self.config.sink_tokens + self.config.kept_tokens + self.config.recalled_tokens
        next_position = rolling + total - self.left if self.evicted else total
        cache = DynamicCache()  # of full layers all, whatever they are: the masks are ours
        # A layer with a window sees the newest tokens, and these stand where the stream goes on from.
        plain = np.arange(total, dtype=np.float64) - total + next_position
        seen = np.array([at.get(token, 0) for token in range(total)], dtype=np.float64)
        for index, keys in self.keys.items():
            if total == 0:
                continue
            where = seen if index in self.served.archived else plain
            rotated = self.rotate(index, np.stack(keys), where)
            k, v = (torch.from_numpy(x).float().transpose(0, 1)[None] for x in (rotated, np.stack(self.values[index])))
            cache.update(k.contiguous(), v.contiguous(), index)
        causal = torch.ones(n, n).tril().bool()
        visible = torch.tensor([token in at for token in range(total)], dtype=torch.bool)
        full = torch.cat([visible.expand(n, total), causal], dim=1)
        masks: Any = self._additive(full)
        window = getattr(self.model.config, "sliding_window", None)
        if self.served.own_layers() and window:
            behind = torch.arange(total, total + n)[:, None] - torch.arange(total + n)[None]
            masks = {"full_attention": masks, "sliding_attention": self._additive((behind >= 0) & (behind < window))}
        places = torch.arange(next_position, next_position + n)[None]
        with torch.no_grad():
            logits: torch.Tensor = self.model(
                input_ids=ids[None], position_ids=places, attention_mask=masks, **{cache_argument(self.model): cache}
            ).logits[0]
        for index in self.keys:
            k, v = (
                x[0, :, -n:].transpose(0, 1).double().numpy()
                for x in (cache.layers[index].keys, cache.layers[index].values)
            )
            self.keys[index] += list(self.rotate(index, k, places[0].double().numpy(), sign=-1))
            self.values[index] += list(v)
        return logits

    @staticmethod
    def _additive(mask: torch.Tensor) -> torch.Tensor:
        return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)[None, None]

    def leave(self) -> None:
        """What is over leaves, all of it archived."""
        over = self.tokens - self.left - self.config.rolling_tokens
        if over >= self.config.evict_tokens:
            self.left += over
            self.evicted = True
            self.trim_again()


class Choices:
    """A scorer beside the frame's own: notes what was chosen of each block."""

    def __init__(self, mm: everlong.MemoryModel) -> None:
        self.os = mm.frame.os
        self.blocks: list[tuple[int, list[int], int]] = []
        self._known: set[int] = set()

    def new(self) -> list[tuple[int, list[int], int]]:
        """Of blocks closed since the last call, not trimmed again yet: length, tokens, rung 0."""
        found = [(b, e, t) for b, e, rung, t in self.os.kept["blocks"] if b not in self._known and rung == 0]
        self._known |= {b for b, _, _ in found}
        return [(e - b, list(t), 0) for b, e, t in found]


@pytest.mark.parametrize(("kind", "rope"), SHAPES)
def test_physical_trimming_is_logical_trimming(kind: str, rope: str) -> None:
    """Over evictions, later trims and drops, a recall of a kept block and what is read with it in place."""
    with everlong.MemoryModel(tiny_model(kind, rope), byte_tokenizer(), config=KEPT) as mm:
        masked, choices = Masked(mm), Choices(mm)
        ids = mm._encode(random_text(1440))
        worst = 0.0
        for first in range(0, len(ids), CHUNK):
            chunk = ids[first : first + CHUNK]
            got, expected = mm.frame.extend(chunk, "read", logits=True), masked.read(chunk)
            worst = max(worst, float((got - expected).abs().max()))
            masked.blocks += choices.new()
            masked.leave()
            assert mm.frame.os.kept_held == masked.kept(), first
            assert mm.frame.resident_tokens == len(masked.positions())
            if first == 960:
                pages = mm.memory.core.pages_of(0, 700, 830)
                held = set(masked.kept())
                mm.frame.recall(pages)
                masked.recalled = [
                    token for page in pages for token in range(page.begin, page.end) if token < masked.left
                ]
                assert held & set(masked.recalled)  # they come back with their page, and are hidden in the zone
                assert mm.frame.resident_tokens == len(masked.positions())
        assert worst <= TOLERANCE
        events = [event["what"] for event in mm.trace()]
        assert events.count("trim again") >= 4
        assert events.count("kept dropped") >= 2
        assert len(mm.frame.os.kept_held) > KEPT.kept_tokens // 2
