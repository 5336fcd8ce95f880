"""Walks for a question, and for what may be asked next. The walk itself is native."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import everlong._core as _core
from everlong.frame.part import Finds, Hidden, Needs, Opening, Question, Said
from everlong.parts.walker.model import WalkerNet
from everlong.parts.walker.prefetch import Prefetch, Prefetcher
from everlong.retrieval.recall import MOST_QUERY_TOKENS

if TYPE_CHECKING:
    from everlong.parts.walker import Walker

_WALKED_AHEAD = 2  # times as many groups as come back for a question


class Walking:
    """A Walker over one memory."""

    def __init__(self, walker: WalkerNet, opening: Opening, settings: Walker) -> None:
        self.settings = settings
        self._policy, self._budget = walker.policy(), walker.settings
        self.prefetcher: Prefetcher | None = None
        if settings.ahead_every > 0 and opening.path is not None:  # without a path all is in RAM
            self.prefetcher = Prefetcher(opening.core)

    @property
    def needs(self) -> Needs:
        """The mean query, by which topics are found."""
        return Needs(mean_query=self.settings.searches)

    def walk(self, loads: int) -> _core.Walk:
        """Return what a search needs to walk with."""
        return _core.Walk(self._policy, loads=loads, hops=self._budget.hops, nodes=self._budget.nodes)

    def asked(self, question: Question, hidden: Hidden) -> Finds:
        return Finds(walk=self.walk(question.config.search.groups) if self.settings.searches else None)

    def ahead(self, said: Said) -> None:
        """Walk ahead through twice as many groups as a question brings back.

        These are that question's groups and what would come next. Where the walk ends early, the search that it began
        with fills them up.
        """
        if self.prefetcher is None or len(said.ids) == 0 or said.answered % self.settings.ahead_every:
            return
        told = Prefetch(said.stream_end, said.branched_at, said.stream)
        words = np.unique(np.asarray(said.ids[-MOST_QUERY_TOKENS:], dtype=np.int32))
        search, groups = said.config.search, _WALKED_AHEAD * said.config.search.groups
        resident = {"stream": said.stream, "resident_from": said.resident_from, "neighbours": search.neighbours}
        request = {**resident, **said.where.core(), "max_groups": groups}
        self.prefetcher.predict(words, self.walk(groups), told, request)

    def came_back(self, pages: Sequence[_core.PageRef]) -> None:
        if self.prefetcher is not None:
            self.prefetcher.came_back(pages)

    def events(self) -> list[dict[str, Any]]:
        return [] if self.prefetcher is None else [told.event() for told in self.prefetcher.told]

    def settle(self) -> None:
        if self.prefetcher is not None:
            self.prefetcher.settle()

    def close(self) -> None:
        if self.prefetcher is not None:
            self.prefetcher.close()
