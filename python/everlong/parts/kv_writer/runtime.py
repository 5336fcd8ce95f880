"""A pack's KV writer at work on blocks and spans of a frame. Thread-safe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from everlong.frame.kept_tokens import best_tokens
from everlong.frame.part import EvictionWriter, Needs, Rows, Span
from everlong.frame.taps import side_by_side
from everlong.models.pack import Pack
from everlong.parts.kv_writer.model import KV_WRITER, KvWriterNet

if TYPE_CHECKING:
    from everlong.parts.trimmer.runtime import HeadScorer


class KvWriterRuntime(EvictionWriter):
    """Writes the keys and values of a block's kept tokens, and of a span that leaves."""

    def __init__(self, pack: Pack, device: torch.device, evicted: frozenset[Literal["kept", "tombstone"]]) -> None:
        part = pack.parts[KV_WRITER]
        self._writer = KvWriterNet.of_part(part).to(device)
        self._id = part.id
        self._chooser = _chooser(pack) if "tombstone" in evicted else None
        layers = set(self._writer.settings.layers)
        if self._chooser is not None:
            layers |= set(self._chooser.needs.hidden_layers)
        self._needs = Needs(hidden_layers=tuple(sorted(layers)), evicted=evicted)

    @property
    def id(self) -> str:
        return self._id

    @property
    def needs(self) -> Needs:
        return self._needs

    @torch.no_grad()
    def write_evicted(self, span: Span, kv: Rows) -> Rows:
        k, v = kv
        chosen = span.chosen
        if chosen is None:  # the best token stands for the span
            assert self._chooser is not None
            best = best_tokens(self._chooser.score_tokens(span), 0, [(0, k.shape[2])], 1)
            chosen = torch.tensor(best, dtype=torch.int64, device="cpu")
        device = self._writer.k_scale.device
        states = side_by_side(span.hidden, self._writer.settings.layers).to(device)
        found = self._writer(states[None], k.to(device)[None], v.to(device)[None], chosen.to(device)[None])
        return found[0][0], found[1][0]


def _chooser(pack: Pack) -> HeadScorer:
    from everlong.parts.trimmer.runtime import trimmer_in

    return trimmer_in(pack)
