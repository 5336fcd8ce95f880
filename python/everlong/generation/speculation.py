"""Speculative decoding: tokens that a draft says will follow are computed beside the one that was chosen.

A forward of a few tokens takes little longer than one of a single token, because both read all weights once. So a
token is computed together with those that a draft says will follow it. Each that is then chosen is there already. A
draft changes no answer: what is chosen follows from the logits alone, and the first token that differs ends the draft
(speculative decoding with a draft that is sure of itself; Leviathan et al., 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from everlong.frame.frame import Frame
from everlong.frame.read_request import Computed


class Speculation:
    """What was computed ahead of the newest token of one answer."""

    def __init__(self, frame: Frame, *, recall: bool) -> None:
        """recall: as the frame's `ReadRequest` has it for the answer's tokens."""
        self._frame, self._recall = frame, recall
        self._ids: list[int] = []  # tokens that were computed, and were not chosen yet
        self._rows: Computed | None = None  # of these and of those before them

    def row(self, token: int, draft: Sequence[int]) -> Computed | None:
        """Return what was computed for a token that was chosen. `draft`: what may follow it.

        None: it is not computed yet.
        """
        if self._ids[:1] != [token]:
            self._ids = []
            if draft:
                ids = [token, *draft]
                self._rows = self._frame.compute_ahead(torch.tensor(ids, device="cpu"), recall=self._recall)
                self._ids = [] if self._rows is None else ids[: len(self._rows.logits)]
        if not self._ids or self._rows is None:
            return None
        at = len(self._rows.logits) - len(self._ids)
        del self._ids[0]
        return Computed(
            self._rows.logits[at : at + 1], {layer: rows[at : at + 1] for layer, rows in self._rows.hidden.items()}
        )
