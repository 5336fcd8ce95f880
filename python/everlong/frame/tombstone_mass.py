"""How much the newest tokens attend to tombstones, by chosen heads: what a tombstone wakes by (recall_policy.h).

The queries come from the tap that questions are searched by; the model's own attention is left as it is. A model that
caps its scores, or has sinks of its own in the softmax, attends by a little less than is said here.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

import torch

import everlong.ops as ops
from everlong.frame.cache import ResidentCache
from everlong.frame.taps import QueryTap
from everlong.models.attach import ServedModel
from everlong.models.rope import RopeTable

Head = tuple[int, int]  # layer, as `ServedModel.archived` counts them, and query head

LEAST_MASS = 1e-9  # less is as much


class TombstoneMass:
    """The attention of some heads of a model."""

    def __init__(self, served: ServedModel, heads: Sequence[Head]) -> None:
        self._served = served
        self._heads = list(heads)
        self._by_layer: dict[int, list[int]] = collections.defaultdict(list)  # places in `heads`
        for place, (layer, _) in enumerate(heads):
            self._by_layer[layer].append(place)

    def tap(self) -> QueryTap:
        """To be entered around the forward."""
        return QueryTap(self._served, self._by_layer)

    @torch.no_grad()
    def of(self, tap: QueryTap, cache: ResidentCache, first_position: int, newest: int | None = None) -> torch.Tensor:
        """Mass [T, heads, tombstones] fp32 on the CPU, of the newest T tokens, which the tap has and the cache too.

        Mass of a head on a slot: the share of its softmax over all that the token sees. `first_position`: where the
        first token that the tap has stands, as the model counts. `newest`: T; None: all that the tap has.
        """
        begin, end = cache.begin, cache.end
        stones = cache.tombstone_slots
        group = self._served.query_heads // self._served.kv_heads
        out: torch.Tensor | None = None
        for layer, places in self._by_layer.items():
            q = tap.queries(layer)
            behind_first = 0 if newest is None else len(q) - newest
            q = q[behind_first:]
            heads = [self._heads[place][1] for place in places]
            first = first_position + behind_first
            positions = torch.arange(first, first + len(q), device=q.device)
            turned = _turned(self._served.table(layer), q[:, heads], positions)  # [T, h, D]
            keys = cache.k[layer, [head // group for head in heads], begin:end].float()  # [h, slots, D]
            scores = torch.einsum("thd,hsd->hts", turned, keys) / q.shape[-1] ** 0.5
            behind = torch.ones(len(q), len(q), dtype=torch.bool, device=q.device).triu(1)
            scores[:, :, scores.shape[-1] - len(q) :].masked_fill_(behind, -torch.inf)
            mass = scores.softmax(dim=-1)[:, :, stones.start - begin : stones.stop - begin]
            if out is None:
                out = torch.zeros(len(q), len(self._heads), mass.shape[-1], device="cpu")
            out[:, places] = mass.transpose(0, 1).cpu()
        assert out is not None
        return out


class TombstoneScores:
    """A number for each tombstone: bias + the sum over heads of weight x log(mass)."""

    def __init__(self, served: ServedModel, heads: Sequence[Head], weights: Sequence[float], bias: float) -> None:
        self._mass = TombstoneMass(served, heads)
        self._weights = torch.tensor(weights, dtype=torch.float32, device="cpu")
        self._bias = bias

    def tap(self) -> QueryTap:
        """To be entered around the forward."""
        return self._mass.tap()

    def newest(self, tap: QueryTap, cache: ResidentCache, first_position: int) -> list[float]:
        """Of the newest token; `first_position` as `TombstoneMass.of` has it."""
        mass = self._mass.of(tap, cache, first_position, newest=1)[-1]
        scores: list[float] = scored(mass, self._weights, self._bias).tolist()
        return scores


def scored(mass: torch.Tensor, weights: torch.Tensor, bias: float) -> torch.Tensor:
    """Scores [..., tombstones] of masses [..., heads, tombstones] by weights [heads]."""
    logs = mass.clamp_min(LEAST_MASS).log()
    return (logs * weights[:, None]).sum(dim=-2) + bias


def _turned(rope: RopeTable, q: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """q [T, H, D] at their positions [T], as the model rotates them."""
    if rope.rotary_dim == 0:
        return q
    rows = q.transpose(0, 1)[None].contiguous()
    # A query has the attention scaling m once, a key in the frame the other time.
    turned, _ = ops.rerotate_kv(rows, rows, positions, rope.inv_freq, rope.attention_scaling, rope.interleaved)
    return turned[0].transpose(0, 1)
