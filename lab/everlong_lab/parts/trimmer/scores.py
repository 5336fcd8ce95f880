"""Scores of a block's tokens by other methods beside the Trimmer's, from one watched reading of the stream.

All layers and heads share one choice, so a method's scores are averaged over them. The methods are:

- random, and newest;
- key norm (Devoto et al., EMNLP 2024);
- H2O (Zhang et al., NeurIPS 2023);
- SnapKV (Li et al., NeurIPS 2024);
- Expected Attention (Devoto et al., arXiv 2510.00636);
- KVzip (Kim et al., arXiv 2505.23416), which reads the block twice.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from everlong.errors import UnsupportedModelError
from everlong.frame.taps import side_by_side
from everlong.models.attention_stats import AttentionStats, AttentionWindow
from everlong.models.rope import RopeTable, rope_table
from everlong.models.trimmed_cache import WholeText, read_whole
from everlong.parts.trimmer.model import TrimmerNet
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong_lab.training.attention_targets import repeated

RANDOM, NEWEST, KEY_NORM, H2O, SNAP, EXPECTED = "random", "newest", "key norm", "H2O", "SnapKV", "Expected Attention"
KVZIP, LEARNED = "KVzip", "Trimmer"

_SNAP_ROWS = 32  # the last tokens that are read, whose attention SnapKV takes
_SNAP_POOL = 5
_FUTURE_TOKENS = 512  # that Expected Attention looks ahead


@dataclasses.dataclass(frozen=True)
class ScoredStream:
    """A stream of sinks, blocks, and what was read after them."""

    ids: torch.Tensor  # int64 [n]
    blocks: int
    read: WholeText
    scores: dict[str, torch.Tensor]  # [blocks * BLOCK_TOKENS] by method


def scored_stream(
    model: Any, ids: torch.Tensor, blocks: int, trimmers: dict[str, TrimmerNet], random: np.random.Generator
) -> ScoredStream:
    """Read a stream [n] once, and every block of it once more; score the tokens of its blocks."""
    end = SINK_TOKENS + blocks * BLOCK_TOKENS
    keys = (SINK_TOKENS, end)
    watches = {
        H2O: AttentionWindow((0, len(ids)), keys),
        SNAP: AttentionWindow((len(ids) - _SNAP_ROWS, len(ids)), keys),
    }
    layers = sorted({layer for trimmer in trimmers.values() for layer in trimmer.settings.layers})
    beside = _BesideAttention(rope_table(model.config), keys)
    with AttentionStats(model, watches, beside.see) as watched:
        read = read_whole(model, ids, layers)
    snap = torch.nn.functional.avg_pool1d(
        watched.mass(SNAP)[None], _SNAP_POOL, stride=1, padding=_SNAP_POOL // 2, count_include_pad=False
    )[0]
    scores = {
        RANDOM: torch.from_numpy(random.random(end - SINK_TOKENS)),
        NEWEST: torch.arange(end - SINK_TOKENS),
        KEY_NORM: -beside.norms,
        H2O: watched.mass(H2O),
        SNAP: snap,
        EXPECTED: beside.expected,
        KVZIP: torch.cat([repeated(model, read.cache, ids, block)[0] for block in range(blocks)]),
    }
    for name, trimmer in trimmers.items():
        states = side_by_side(read.hidden, trimmer.settings.layers)[SINK_TOKENS:end]
        scores[name] = scores_of(trimmer, states, len(ids))
    return ScoredStream(ids, blocks, read, {name: of.float().cpu() for name, of in scores.items()})


def scores_of(trimmer: TrimmerNet, states: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return [blocks * BLOCK_TOKENS] of states [..., width] of the blocks of a stream of `tokens` tokens."""
    return torch.cat(
        [
            trimmer.scores(own, tokens - SINK_TOKENS - (block + 1) * BLOCK_TOKENS)
            for block, own in enumerate(torch.split(states, BLOCK_TOKENS))
        ]
    )


class _BesideAttention:
    """Key norms and Expected Attention of some keys, summed over the layers as they are read."""

    def __init__(self, rope: RopeTable, keys: tuple[int, int]) -> None:
        if rope.interleaved:
            raise UnsupportedModelError("Expected Attention is measured with heads that are rotated by halves")
        self._rope = rope
        self._keys = slice(*keys)
        self.norms = torch.zeros(keys[1] - keys[0])  # summed over heads and layers
        self.expected = torch.zeros(keys[1] - keys[0])

    def see(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Add one layer: q [1, H, n, D], k and v [1, Hkv, n, D] at positions 0 .. n - 1."""
        keys, values = k[0, :, self._keys].float(), v[0, :, self._keys].float()
        self.norms += keys.norm(dim=-1).sum(dim=0)
        self.expected += expected_attention(q[0].float(), keys, values, self._rope).sum(dim=0)


def expected_attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rope: RopeTable) -> torch.Tensor:
    """Return [Hkv, T] of keys and values [Hkv, T, D]: the expected attention to each, times the length of its value.

    It is the share that queries like q [H, n, D] will give, if their numbers are Gaussian. q stands at positions 0 .. n
    - 1; the queries to come stand at the next ones.
    """
    heads, rows, width = q.shape
    angle = rope.inv_freq.float()
    turned = _rotated(q[:, SINK_TOKENS:], -torch.arange(SINK_TOKENS, rows)[:, None] * angle)
    mean = turned.mean(dim=1)  # [H, D] un-rotated
    spread = turned - mean[:, None]
    covariance = spread.transpose(1, 2) @ spread / spread.shape[1]
    ahead = (rows + torch.arange(_FUTURE_TOKENS))[:, None] * angle
    cos, sin = ahead.cos().mean(dim=0), ahead.sin().mean(dim=0)
    turn = torch.eye(width)
    half = len(angle)
    first, second = torch.arange(half), torch.arange(half, 2 * half)
    turn[first, first] = turn[second, second] = cos
    turn[first, second], turn[second, first] = -sin, sin
    mean, covariance = mean @ turn.T, turn @ covariance @ turn.T
    groups = heads // len(keys)
    wide = keys.repeat_interleave(groups, dim=0)  # [H, T, D]
    scores = (wide @ mean[:, :, None])[..., 0] / width**0.5
    scores = scores + ((wide @ covariance) * wide).sum(dim=-1) / width / 2
    shares = torch.softmax(scores, dim=-1).view(len(keys), groups, -1).mean(dim=1)
    lengths: torch.Tensor = values.norm(dim=-1)
    return shares * lengths


def _rotated(rows: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate the halves of rows [H, n, D] by angles [n, R / 2]."""
    half = angles.shape[-1]
    first, second, rest = rows[..., :half], rows[..., half : 2 * half], rows[..., 2 * half :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
