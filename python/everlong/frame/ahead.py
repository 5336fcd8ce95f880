"""Tokens that are computed before anybody has chosen them: a draft of what an answer will say next.

A forward of a few tokens takes little longer than one of a single token, because both read all weights once. So a
token is computed together with those that a draft says will follow it. Each that is then chosen is there already. A
draft changes no answer: what is chosen follows from the logits alone, and the first token that differs ends the draft
(speculative decoding with a draft that is sure of itself; Leviathan et al., 2023).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from everlong.frame.taps import HiddenTap
from everlong.frame.zones import Zones
from everlong.models.tokens import Tokens

Computed = tuple[torch.Tensor, Mapping[int, torch.Tensor]]  # logits [1, V], and hidden states [1, size] by layer


@dataclasses.dataclass
class _Rows:
    """What one forward computed, and how many of its tokens were taken."""

    ids: list[int]
    logits: torch.Tensor  # [n, V]
    hidden: dict[int, torch.Tensor]  # by layer, [n, hidden size]
    taken: int = 0


class Ahead:
    """What was computed ahead of one frame's newest token. For the frame's thread alone."""

    def __init__(self, zones: Zones, model: Any) -> None:
        self._zones, self._model = zones, model
        self._rows: _Rows | None = None

    def compute(self, token: Tokens, draft: Sequence[int], layers: Iterable[int]) -> Computed | None:
        """Put one token behind the newest one. `draft` are ids that may follow it.

        Return what the model computes for the token, and hidden states of these layers. None: it is not computed here.
        """
        wanted = sorted(set(layers))
        if token.embeds is not None or len(token) != 1:
            self._rows = None
            return None
        found = self._take(token, wanted)
        if found is None and draft:
            self._look(token, draft[: max(0, self._zones.room_ahead() - 1)], wanted)
            found = self._take(token, wanted)
        return found

    def _look(self, token: Tokens, draft: Sequence[int], layers: Sequence[int]) -> None:
        self._rows = None
        if not draft:
            return
        ids = torch.cat([token.ids, torch.tensor(draft, dtype=torch.int64, device="cpu")])
        with HiddenTap(self._model, layers) if layers else contextlib.nullcontext() as tap:
            logits = self._zones.compute_ahead(Tokens(ids))
        if logits is not None:
            hidden = {} if tap is None else {layer: tap.hidden(layer)[-len(ids) :] for layer in layers}
            self._rows = _Rows(ids.tolist(), logits, hidden)

    def _take(self, token: Tokens, layers: Sequence[int]) -> Computed | None:
        """Return what was computed for this token, if it is the next one and what stands before it still does."""
        rows, self._rows = self._rows, None
        if rows is None or rows.taken == len(rows.ids) or rows.ids[rows.taken] != int(token.ids[0]):
            return None
        if not rows.hidden.keys() >= set(layers) or not self._zones.adopt():
            return None
        one = slice(rows.taken, rows.taken + 1)
        rows.taken += 1
        self._rows = rows
        return rows.logits[one], {layer: rows.hidden[layer][one] for layer in layers}
