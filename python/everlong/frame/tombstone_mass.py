"""How much the newest tokens attend to tombstones, by chosen heads: what a tombstone wakes by (recall_policy.h).

The queries come from the tap that questions are searched by; the model's own attention is left as it is. A model that
caps its scores, or has sinks of its own in the softmax, attends by a little less than is said here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        # Places in `heads`, of layers that share a rotation.
        split = [place for place, (layer, _) in enumerate(heads) if layer >= served.rotated]
        rotated = [place for place, (layer, _) in enumerate(heads) if layer < served.rotated]
        self._groups = [group for group in (rotated, split) if group]

    def tap(self) -> QueryTap:
        """To be entered around the forward."""
        return QueryTap(self._served, (layer for layer, _ in self._heads))

    @torch.no_grad()
    def of(self, tap: QueryTap, cache: ResidentCache, first_position: int, newest: int | None = None) -> torch.Tensor:
        """Mass [T, heads, tombstones] fp32 on the CPU, of the newest T tokens, which the tap has and the cache too.

        Mass of a head on a slot: the share of its softmax over all that the token sees. `first_position`: where the
        first token that the tap has stands, as the model counts. `newest`: T; None: all that the tap has.
        """
        queries = {layer: tap.queries(layer) for layer in {layer for layer, _ in self._heads}}
        stones = cache.tombstone_slots
        masses = [self._of_group(group, queries, cache, first_position, newest) for group in self._groups]
        order = torch.tensor([place for group in self._groups for place in group], device="cpu").argsort()
        mass = torch.cat(masses)[:, :, stones.start - cache.begin : stones.stop - cache.begin]
        return mass.transpose(0, 1).cpu()[:, order]

    def _of_group(
        self,
        places: Sequence[int],
        queries: Mapping[int, torch.Tensor],
        cache: ResidentCache,
        first_position: int,
        newest: int | None,
    ) -> torch.Tensor:
        """[heads, T, slots] of heads whose layers share a rotation."""
        of_a_key = self._served.query_heads // self._served.kv_heads
        heads = [self._heads[place] for place in places]
        q = torch.stack([queries[layer][:, head] for layer, head in heads])  # [h, tokens, D]
        behind_first = 0 if newest is None else q.shape[1] - newest
        q = q[:, behind_first:]
        tokens, head_dim = q.shape[1:]
        q = _turned(self._served.table(heads[0][0]), q, first_position + behind_first)
        layers, kv_heads = [layer for layer, _ in heads], [head // of_a_key for _, head in heads]
        keys = cache.k[layers, kv_heads, cache.begin : cache.end].float()  # [h, slots, D]
        scores = q @ keys.transpose(1, 2) / head_dim**0.5
        if tokens > 1:
            behind = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
            scores[:, :, scores.shape[-1] - tokens :].masked_fill_(behind, -torch.inf)
        mass: torch.Tensor = scores.softmax(dim=-1)
        return mass


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


def _turned(rope: RopeTable, q: torch.Tensor, first_position: int) -> torch.Tensor:
    """q [H, T, D] at positions first_position, first_position + 1 ..., as the model rotates them."""
    if rope.rotary_dim == 0:
        return q
    rows = q[None].contiguous()
    positions = torch.arange(first_position, first_position + q.shape[1], device=q.device)
    # A query has the attention scaling m once, a key in the frame the other time.
    turned, _ = ops.rerotate_kv(rows, rows, positions, rope.inv_freq, rope.attention_scaling, rope.interleaved)
    return turned[0]
