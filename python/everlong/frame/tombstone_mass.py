"""How much chosen heads attend from the newest tokens to tombstones. A part wakes tombstones by it.

The queries come from the tap that a question's search uses. The model's own attention stays as it is. A model that caps
its scores, or has sinks of its own in the softmax, attends a little less than the figures here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

import everlong.ops as ops
from everlong.frame.part import Head
from everlong.frame.taps import QueryTap
from everlong.kv_cache.cache import ResidentCache
from everlong.models.attach import AttachedModel
from everlong.models.rope import RopeTable

Key = TypeVar("Key")


class TombstoneMass:
    """The attention of some heads of a model to tombstones."""

    def __init__(self, served: AttachedModel, heads: Sequence[Head]) -> None:
        self._served = served
        self._heads = list(heads)
        # Places in `heads` by group: layers that share a rotation, and heads that read the same keys.
        self._rotations = _grouped(self._heads, lambda head: head[0] < served.rotated)
        of_a_key = served.query_heads // served.kv_heads
        self._keys = _grouped(self._heads, lambda head: (head[0], head[1] // of_a_key))

    def tap(self) -> QueryTap:
        """Return the tap to enter around the forward."""
        return QueryTap(self._served, (layer for layer, _ in self._heads))

    @torch.no_grad()
    def of(self, tap: QueryTap, cache: ResidentCache, first_position: int, newest: int | None = None) -> torch.Tensor:
        """Return the mass [T, heads, tombstones], fp32 on the CPU, of the newest T tokens, which tap and cache have.

        The mass of a head on a slot is the slot's share of its softmax over all that the token sees. `first_position`:
        of the first token that the tap has, as the model counts. `newest`: T; None: all that the tap has.
        """
        layers = {layer: tap.queries(layer) for layer in {layer for layer, _ in self._heads}}
        q = torch.stack([layers[layer][:, head] for layer, head in self._heads])  # [heads, tokens, D]
        behind_first = 0 if newest is None else q.shape[1] - newest
        q = q[:, behind_first:] / q.shape[-1] ** 0.5
        tokens = q.shape[1]
        for places in self._rotations.values():
            rope = self._served.table(self._heads[places[0]][0])
            q[places] = _turned(rope, q[places], first_position + behind_first)
        slots = cache.end - cache.begin
        scores = q.new_empty(len(self._heads), tokens, slots)
        for (layer, kv_head), places in self._keys.items():
            keys = cache.k[layer, kv_head, cache.begin : cache.end].float()  # [slots, D]
            scores[places] = q[places] @ keys.T
        if tokens > 1:
            behind = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
            scores[:, :, slots - tokens :].masked_fill_(behind, -torch.inf)
        if cache.hidden is not None:
            hidden = torch.from_numpy(cache.hidden[cache.begin : cache.end]).to(q.device)
            scores.masked_fill_(hidden, -torch.inf)
        stones = cache.tombstone_slots
        mass: torch.Tensor = scores.softmax(dim=-1)[:, :, stones.start - cache.begin : stones.stop - cache.begin]
        return mass.transpose(0, 1).cpu()


def _grouped(heads: Sequence[Head], key: Callable[[Head], Key]) -> dict[Key, list[int]]:
    """Group places of heads by `key`."""
    groups: dict[Key, list[int]] = {}
    for place, head in enumerate(heads):
        groups.setdefault(key(head), []).append(place)
    return groups


def _turned(rope: RopeTable, q: torch.Tensor, first_position: int) -> torch.Tensor:
    """Rotate q [H, T, D] to positions first_position, first_position + 1 ..., as the model does."""
    if rope.rotary_dim == 0:
        return q
    rows = q[None].contiguous()
    positions = torch.arange(first_position, first_position + q.shape[1], device=q.device)
    # The attention scaling m stands once in a query, the other time in a key of the frame.
    turned, _ = ops.rerotate_kv(rows, rows, positions, rope.inv_freq, rope.attention_scaling, rope.interleaved)
    return turned[0]
