"""Carries out the recalls that a Memory OS asks for: finds what is to come back, and brings it back into the frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Sequence

import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.frame.executor import Recalls
from everlong.frame.frame import Frame
from everlong.frame.offers import Offers, offers_of
from everlong.memory.where import EVERYWHERE, Where
from everlong.retrieval.question_states import TappedQuestion
from everlong.retrieval.quotes import Sentence
from everlong.retrieval.recall import Recall
from everlong.retrieval.searcher import Searcher
from everlong.retrieval.walk import WalkTrace
from everlong.text.prompt import Prompt


@dataclasses.dataclass(frozen=True, eq=False)
class Turn:
    """A question that is being answered, and what may come back for it."""

    prompt: Prompt | None = None  # None: no question is under way
    where: Where = EVERYWHERE
    recalls: bool = True  # whether what the Memory OS asks for comes back
    tapped: TappedQuestion | None = None  # the question as it was read for its search


class RecallExecutor:
    """Brings back into one frame what its memory finds. For the frame's thread alone."""

    def __init__(self, frame: Frame, searcher: Searcher) -> None:
        self._frame, self._searcher, self._core = frame, searcher, frame.memory.core
        self.clear()

    def clear(self) -> None:
        """Note that nothing came back for the question that begins."""
        self.recalled: tuple[Recall, ...] = ()  # best first, then what came during the answer
        self.confidence: float | None = None  # how likely that holds the answer; None where nothing was searched
        self.walk: WalkTrace | None = None  # the walk in the question's search; None where there was none
        self.sentences: tuple[Sentence, ...] = ()  # to stand in words before the question, best first
        self.nearest: tuple[Sentence, ...] = ()  # the best sentence of what was found, or none

    def drop_forgotten(self) -> None:
        """Leave out what was forgotten since it came back."""
        self.recalled = tuple(filter(self._searcher.citing.is_there, self.recalled))
        self.sentences = self.nearest = ()

    def carry_out(self, recalls: Recalls, turn: Turn, newest: Sequence[int]) -> None:
        """Carry out recalls for a question, in order. `newest`: token ids of it and of its answer so far."""
        for offers in self._offers(recalls, turn, newest):
            self._frame.bring_back(offers)

    def carry_out_in_steps(self, recalls: Recalls, turn: Turn, newest: Sequence[int]) -> Generator[None]:
        """Do as `carry_out`. It yields as `Frame.bring_back_in_steps` does."""
        for offers in self._offers(recalls, turn, newest):
            yield from self._frame.bring_back_in_steps(offers)

    def token_ids(self) -> Iterator[list[int]]:
        """Yield the token ids of what came back, the best last, without what was forgotten since."""
        blocks = self._core.blocks
        for recall in reversed(self.recalled):
            try:
                ids = blocks.token_ids(blocks.info(recall.block_id).stream, *recall.span)
            except MemoryNotFoundError:
                continue
            yield ids.tolist()

    def _offers(self, recalls: Recalls, turn: Turn, newest: Sequence[int]) -> Iterator[Offers]:
        for action in recalls if turn.recalls else ():
            offers = self._found(action, turn, newest)
            self._frame.parts.on_recalled([page for offer in offers for page in offer.pages])
            yield offers

    def _found(self, action: _core.Recall, turn: Turn, newest: Sequence[int]) -> Offers:
        """Return what comes back: by the question's queries, or by those of the newest tokens."""
        searcher, where, config = self._searcher, turn.where, self._searcher.config
        if action.trigger == "recent":
            pages = searcher.recent_pages(action.blocks, where)
            self._cite(searcher.citing.pages(pages, "recent"))
            return offers_of(pages, "recent")
        scorer = self._frame.parts.tombstone_scorer
        if action.trigger == "tombstone" and scorer is not None and scorer.recalls_span:
            pages = searcher.pages_of(action.span, where)
            self._cite(searcher.citing.pages(pages, "tombstone"))
            return offers_of(pages, "tombstone")
        if not searcher.anything_outside(where):
            return ()
        if action.trigger == "prompt" and turn.prompt is not None:
            found = searcher.find_sentences(turn.prompt, where, turn.tapped).chosen(config.search.decisive)
            self.confidence, self.walk = found.confidence, found.walk
            self.sentences, self.nearest = searcher.quotes(found, where), found.sentences[:1]
        else:
            ids = self._newest(newest, config.archive.page_tokens)
            if len(ids) == 0:
                return ()
            found = searcher.find(Prompt(ids, slice(0, len(ids))), where).chosen(config.search.decisive)
        quotes_alone = action.trigger == "prompt" and config.answer.quotes_alone
        self._cite(searcher.citing.found(found, self.sentences if quotes_alone else None))
        if quotes_alone:
            return ()
        return found.in_frame_order(config.answer.order, config.answer.recalled_temperature)

    def _newest(self, newest: Sequence[int], count: int) -> torch.Tensor:
        """Return the newest token ids: of question and answer, or of what was archived."""
        ids = torch.tensor(newest[-count:], dtype=torch.int64, device="cpu")
        return ids if len(ids) > 0 else self._frame.stream.newest_archived(count)

    def _cite(self, came: Sequence[Recall]) -> None:
        """Add what came back later in an answer behind what was there when it began."""
        there = {recall.span for recall in self.recalled}
        self.recalled = (*self.recalled, *(recall for recall in came if recall.span not in there))
