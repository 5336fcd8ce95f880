"""From a question to the pages that answer it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.errors import MemoryNotFoundError
from everlong.frame.frame import Frame
from everlong.frame.offers import Page, identity
from everlong.frame.part import Cosines, Offer, Retriever, Vectors
from everlong.frame.parts import Parts, best_first, needs_of
from everlong.memory.where import EVERYWHERE, Where
from everlong.models.model_interface import ModelInterface
from everlong.retrieval.question_states import (
    MOST_QUERY_TOKENS,
    TappedQuestion,
    head_queries,
    mean_query,
    needs_mean_query,
)
from everlong.retrieval.recall import SearchOutcome
from everlong.retrieval.rerank import MOST_CANDIDATES
from everlong.retrieval.walk import trace_of
from everlong.retrieval.word_table import rarest_words
from everlong.text.prompt import Prompt

# Returns what to add to the scores of a search's first pages; `core.search.find` takes it as `added`.
Rerank = Callable[[_core.SearchResult], Sequence[tuple[_core.PageRef, float]]]

NO_BUDGET = 1 << 40  # tokens: room for whatever is found
_MOST_GROUPS = (1 << 31) - 1

# Index parts that compare vectors which a learned part makes.
_BY_A_PART = {kind.name for kind in _core.index_kinds() if kind.from_pack}


def search(
    frame: Frame,
    prompt: Prompt,
    question: TappedQuestion,
    config: MemoryConfig,
    where: Where = EVERYWHERE,
    page_query: np.ndarray[Any, np.dtype[np.float32]] | None = None,
    rerank: Rerank | None = None,
    narrow: _core.Narrow | None = None,
    budget: int | None = None,
) -> SearchOutcome:
    """Search that part of the frame's memory for a question, and ask the frame's parts for it.

    `page_query` is the question's vector by the encoder, where pages have vectors. `rerank` returns, for a search that
    names the first places one by one, what to add to the scores of their pages. `narrow` prunes before, too. `budget`:
    tokens of what is found, by default those of the recalled zone. For a question longer than MOST_QUERY_TOKENS its
    rarest tokens are searched by. A frame without a recalled zone has no room, so nothing is found.
    """
    if config.frame.recalled_tokens == 0:
        return SearchOutcome((), False, 0.0)
    part_query = PartQuery(frame, prompt, question, config, where, page_query, rerank)
    part_query.request |= {
        "neighbours": config.search.neighbours,
        "stream": frame.os.stream,
        "resident_from": frame.os.rolling[0],
        **where.core(),
        "narrow": narrow,
    }
    part_query.ask_finders()
    part_query.ask_others()
    budget = config.frame.recalled_tokens if budget is None else budget
    passes = _PassesFilter(frame, where)
    blocks = tuple(offer for offer in part_query.offers if offer.as_details and passes(offer.page.block))
    if config.answer.recall_mode == "both":
        budget = max(0, budget - len(blocks) * config.detail_slots)
    core = frame.memory.core
    result = core.search.find(
        **part_query.request,
        max_groups=config.search.groups,
        token_budget=budget,
        added=part_query.added,
        walk=part_query.walk,
    )
    offers = _with_offers(frame, result.groups, part_query.offers, config.search.groups, budget, passes)
    # The index is sure of the page that it had first itself.
    same = part_query.wide is None or _best(part_query.wide) == _best(result)
    walked = None if result.walk is None else trace_of(core, result.walk)
    return SearchOutcome(
        offers, result.agreed and same, result.decisiveness, blocks, walked, part_query.vectors, part_query.cosines
    )


def search_as_found(
    frame: Frame,
    prompt: Prompt,
    question: TappedQuestion,
    config: MemoryConfig,
    where: Where,
    narrow: _core.Narrow | None,
) -> SearchOutcome:
    """Search for a question that has no states, by the parts alone that search for kinds of the index in use."""
    part_query = PartQuery(frame, prompt, question, config, where)
    part_query.request |= {
        "neighbours": config.search.neighbours,
        "stream": frame.os.stream,
        "resident_from": frame.os.rolling[0],
        **where.core(),
        "narrow": narrow,
    }
    part_query.ask_finders()
    groups = min(2 * config.search.groups, _MOST_GROUPS)
    how: dict[str, Any] = {"max_groups": groups, "token_budget": tokens_of(groups, config), "added": part_query.added}
    result = frame.memory.core.search.find(**part_query.request, **how)
    offers = tuple(map(offer_of, result.groups))
    return SearchOutcome(
        offers, result.agreed, result.decisiveness, vectors=part_query.vectors, cosines=part_query.cosines
    )


def tokens_of(groups: int, config: MemoryConfig) -> int:
    """Return tokens for groups, each with a page beside its neighbours. Without a limit one may be all text."""
    return groups * (2 * config.search.neighbours + 2) * config.archive.page_tokens


class PartQuery:
    """A question on its way through the parts (frame/part.py, `Question`). What they do for it comes together here."""

    def __init__(
        self,
        frame: Frame,
        prompt: Prompt,
        tapped: TappedQuestion,
        config: MemoryConfig,
        where: Where = EVERYWHERE,
        page_query: np.ndarray[Any, np.dtype[np.float32]] | None = None,
        rerank: Rerank | None = None,
    ) -> None:
        self.prompt, self.config, self.where = prompt, config, where
        self._core, self._parts, self._rerank = frame.memory.core, frame.parts, rerank
        self.whole = tapped.states.hidden
        if len(tapped.token_ids) > MOST_QUERY_TOKENS:
            weights = self._core.search.idf(tapped.token_ids)
            tapped = tapped.only(rarest_words(self._core, tapped.token_ids, weights, MOST_QUERY_TOKENS))
        self.ids, self._hidden = tapped.token_ids, tapped.states.hidden
        self._finders = [one for one in self._parts.retrievers if needs_of(one).kinds]
        words = self._core.index.words() is not None
        self.request = _search_inputs(frame.served, tapped, config, page_query, self._parts, words=words)
        self.wide: _core.SearchResult | None = None
        self.added: list[tuple[_core.PageRef, float]] = []
        self.offers: list[Offer] = []
        self.walk: _core.Walk | None = None
        self.vectors: Vectors | None = None
        self.cosines: Cosines | None = None

    def ask_finders(self) -> None:
        """Ask the parts that search for a kind of the index which is in use."""
        self._ask([one for one in self._finders if set(needs_of(one).kinds) & set(self.config.search.index)])

    def ask_others(self) -> None:
        """Ask the model that re-ranks what they find, then the other parts. Each knows what those before it did."""
        if self._rerank is not None:
            self.added += self._rerank(self.first())
        self._ask([one for one in self._parts.retrievers if one not in self._finders])

    def _ask(self, parts: Sequence[Retriever]) -> None:
        for one in parts:
            layers = needs_of(one).question_layers
            if not all(layer in self._hidden for layer in layers):
                continue  # a frame of text alone has none
            found = one.retrieve(self, {layer: self._hidden[layer] for layer in layers})
            self.request |= found.query
            self.added += found.added
            self.offers += found.offers
            self.walk = found.walk or self.walk
            self.vectors = found.vectors or self.vectors
            self.cosines = found.cosines or self.cosines

    def first(self) -> _core.SearchResult:
        """Return the first places of a search, one by one, before any part changes their scores."""
        if self.wide is None:
            self.wide = self._places(MOST_CANDIDATES, ())
        return self.wide

    def search(self, groups: int, added: Sequence[tuple[_core.PageRef, float]] = ()) -> _core.SearchResult:
        """Return `groups` places, whatever their size. Scores include all that was added so far, and `added`."""
        return self._places(groups, [*self.added, *added])

    def _places(self, groups: int, added: Sequence[tuple[_core.PageRef, float]]) -> _core.SearchResult:
        return self._core.search.find(
            **self.request, max_groups=groups, token_budget=NO_BUDGET, least_share=0, added=added
        )


class _PassesFilter:
    """Says of a block whether a search may bring it back."""

    def __init__(self, frame: Frame, where: Where) -> None:
        self._core, self._filter = frame.memory.core, where.core()

    def __call__(self, block_id: int) -> bool:
        try:
            block = self._core.blocks.info(block_id)
        except MemoryNotFoundError:  # forgotten since
            return False
        newest = self._core.search.recent_pages(block.stream, block.end, 1, **self._filter)
        return any(page.block == block_id for page in newest)


def _with_offers(
    frame: Frame,
    found: Sequence[_core.FoundGroup],
    offers: Sequence[Offer],
    most: int,
    budget: int,
    passes: Callable[[int], bool],
) -> tuple[Offer, ...]:
    """Return what was found and what is offered, the likeliest first, as far as there is room. Each page comes once."""
    groups = list(map(offer_of, found))
    core, os = frame.memory.core, frame.os
    there = {identity(page) for group in groups for page in group.pages}
    for offer in best_first([offer for offer in offers if not offer.as_details]):
        stream, begin, end = offer.page.stream, *(offer.span or (offer.page.begin, offer.page.end))
        if stream == os.stream:  # what is in the frame does not come back
            end = max(begin, min(end, os.rolling[0]))
        if not passes(offer.page.block):
            continue
        block = core.blocks.info(offer.page.block)
        begin, end = max(begin, block.begin), min(end, block.end)
        of_span = core.blocks.pages_of(stream, begin, end) if begin < end else []
        if pages := [page for page in of_span if identity(page) not in there]:
            there |= set(map(identity, pages))
            place = next((at for at, group in enumerate(groups) if group.score < offer.score), len(groups))
            sure = math.exp(min(0.0, offer.score))
            groups.insert(place, dataclasses.replace(offer, page=pages[0], pages=pages, confidence=sure))
    if len(groups) == len(found):
        return tuple(groups)
    chosen: list[Offer] = []
    for group in groups[:most]:
        budget -= sum(page.end - page.begin for page in group.pages)
        if budget < 0:
            break
        chosen.append(group)
    return tuple(chosen)


def offer_of(group: _core.FoundGroup) -> Offer:
    """Return what a search found as an offer of its pages."""
    found_by = (*group.found_by, *(["graph"] if group.walked else []))
    return Offer(group.score, best_page(group), found_by, pages=group.pages, confidence=group.confidence)


def best_page(group: _core.FoundGroup) -> _core.PageRef:
    """Return the group's page with the best score."""
    return group.pages[int(np.argmax(group.page_scores))]


def _best(result: _core.SearchResult) -> Page | None:
    """Return the page with the best score; None where there is none."""
    return identity(best_page(result.groups[0])) if result.groups else None


def _search_inputs(
    served: ModelInterface,
    question: TappedQuestion,
    config: MemoryConfig,
    page_query: np.ndarray[Any, np.dtype[np.float32]] | None,
    parts: Parts,
    *,
    words: bool,
) -> dict[str, Any]:
    """Return what `core.search.find` takes of a question, and by which index parts, before parts are asked.

    Without a table of `words` token ids stand for them.
    """
    keyed, queries, profile = served.keyed, question.states.queries, question.profile
    there = {kind for one in parts.retrievers for kind in needs_of(one).kinds}
    not_there = ({"heads"} if profile is None else set()) | (_BY_A_PART - there)
    asked = (kind if words or kind != "words" else "lexical" for kind in config.search.index)
    kinds = [kind for kind in dict.fromkeys(asked) if kind not in not_there]
    by_heads = by_mean = None
    if keyed is not None and queries:
        by_heads = head_queries(keyed, queries, profile) if profile is not None and "heads" in kinds else None
        by_mean = mean_query(keyed, queries) if needs_mean_query(config, parts) else None
    return {
        "token_ids": question.token_ids,
        "head_queries": by_heads,
        "mean_query": by_mean,
        "page_query": page_query,
        "kinds": kinds or ["lexical"],
    }
