"""Walks for a question, and for what may be asked next. The walk itself is native."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import everlong._core as _core
from everlong.frame.part import (
    AnswerProgress,
    Hidden,
    Lifecycle,
    LoadContext,
    Needs,
    PartFindings,
    Question,
    RecallObserver,
    RecallPrefetcher,
    Retriever,
    Traced,
)
from everlong.parts.walker.model import WalkerNet
from everlong.parts.walker.prefetch import Prefetch, Prefetcher
from everlong.retrieval.question_states import MOST_QUERY_TOKENS

if TYPE_CHECKING:
    from everlong.parts.walker import Walker

_WALKED_AHEAD = 2  # times as many groups as come back for a question


class WalkerRuntime(Retriever, RecallPrefetcher, RecallObserver, Traced, Lifecycle):
    """A Walker over one memory."""

    def __init__(self, walker: WalkerNet, opening: LoadContext, settings: Walker) -> None:
        self.settings = settings
        self._policy, self._budget = walker.policy(), walker.settings
        self.prefetcher: Prefetcher | None = None
        if settings.ahead_every > 0 and opening.path is not None:  # without a path all is in RAM
            self.prefetcher = Prefetcher(opening.core)

    @property
    def needs(self) -> Needs:
        """The mean query, by which topics are found."""
        return Needs(mean_query=self.settings.searches)

    def _walk(self, loads: int) -> _core.Walk:
        """Return what a search needs to walk with."""
        return _core.Walk(self._policy, loads=loads, hops=self._budget.hops, nodes=self._budget.nodes)

    def retrieve(self, question: Question, hidden: Hidden) -> PartFindings:
        return PartFindings(walk=self._walk(question.config.search.groups) if self.settings.searches else None)

    def prefetch(self, progress: AnswerProgress) -> None:
        """Walk ahead through twice as many groups as a question brings back.

        These are that question's groups and what would come next. Where the walk ends early, the search that it began
        with fills them up.
        """
        if self.prefetcher is None or len(progress.ids) == 0 or progress.answered % self.settings.ahead_every:
            return
        told = Prefetch(progress.stream_end, progress.branched_at, progress.stream)
        words = np.unique(np.asarray(progress.ids[-MOST_QUERY_TOKENS:], dtype=np.int32))
        search, groups = progress.config.search, _WALKED_AHEAD * progress.config.search.groups
        resident = {"stream": progress.stream, "resident_from": progress.resident_from, "neighbours": search.neighbours}
        request = {**resident, **progress.where.core(), "max_groups": groups}
        self.prefetcher.predict(words, self._walk(groups), told, request)

    def on_recalled(self, pages: Sequence[_core.PageRef]) -> None:
        if self.prefetcher is not None:
            self.prefetcher.on_recalled(pages)

    def events(self) -> list[dict[str, Any]]:
        return [] if self.prefetcher is None else [told.event() for told in self.prefetcher.prefetches]

    def settle(self) -> None:
        if self.prefetcher is not None:
            self.prefetcher.settle()

    def close(self) -> None:
        if self.prefetcher is not None:
            self.prefetcher.close()
