"""From a question to the pages that answer it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.config.answer import Order
from everlong.errors import MemoryNotFoundError
from everlong.frame.frame import Frame
from everlong.frame.offers import Page, identity
from everlong.frame.part import Cosines, Offer, Retriever, Vectors
from everlong.frame.parts import Parts, best_first, needs_of
from everlong.frame.read_request import ReadRequest
from everlong.frame.taps import HiddenTap, QueryTap, rotate_queries
from everlong.kv_cache.steps import run_to_end
from everlong.memory.where import EVERYWHERE, Role, Where
from everlong.models.attach import AttachedModel
from everlong.models.model_interface import ModelInterface
from everlong.retrieval.profile import IndexProfile
from everlong.retrieval.quotes import Sentence
from everlong.retrieval.rerank import MOST_CANDIDATES
from everlong.retrieval.walk import WalkTrace, trace_of
from everlong.text import notebook_html
from everlong.text.prompt import Prompt

# Returns what to add to the scores of a search's first pages; `core.search.find` takes it as `added`.
Rerank = Callable[[_core.SearchResult], Sequence[tuple[_core.PageRef, float]]]

NO_BUDGET = 1 << 40  # tokens: room for whatever is found

# Index parts that compare a question's mean query with blocks, and those with vectors that a part makes.
_BY_MEAN = {kind.name for kind in _core.index_kinds() if "mean_query" in kind.inputs}
_BY_A_PART = {kind.name for kind in _core.index_kinds() if kind.from_pack}

# The most tokens of a question that are searched by. Each costs time, and common ones say little of a page.
MOST_QUERY_TOKENS = 256


@dataclasses.dataclass(frozen=True)
class Recall:
    """A group of pages of one block run that came back, and from where."""

    block_id: int  # block of the group's first page
    span: tuple[int, int]  # tokens of the stream
    score: float  # its best page's; comparable within one answer only
    source: str
    text: str
    passage: str  # the page of it that was found; the rest stands around it
    found_by: tuple[str, ...]  # index parts that found it
    role: Role  # what the passage was: read, asked or said
    # How likely it holds the answer, 0..1, among all that came back with it. Those of one search add up to
    # `Answer.confidence`. None for what no search found, or only parts with scores that do not tell right from wrong.
    confidence: float | None = None
    origin: str = ""  # where it was read from, usually a file's path
    place: str = ""  # where the passage stands in its file, as "p. 14"; "" for a plain text
    as_details: bool = False  # its block came back as Detail Tokens, which are not its words
    # In UTC, ISO 8601: when its events happened, as `read` was told, else when it was archived.
    told: str = dataclasses.field(default="", compare=False)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: where it stands, which unfolds to the passage."""
        sure = "" if self.confidence is None else f"{self.confidence:.0%}"
        head = ", ".join(filter(None, (self.source or notebook_html.CONVERSATION, self.place, sure)))
        return notebook_html.unfolding(head, self.passage)


@dataclasses.dataclass(frozen=True)
class SearchOutcome:
    """A search's outcome: what it offers, best first, and how sure the index is."""

    offers: tuple[Offer, ...]
    agreed: bool  # every index part has the best page among its first; False where re-ranking chose another one
    decisiveness: float  # mass of the best page over the second best; 0 without heads
    blocks: tuple[Offer, ...] = ()  # blocks that are to come back as Detail Tokens, best first
    walk: WalkTrace | None = None  # the walk in the search, if there was one
    vectors: Vectors | None = None  # what the sentences of the recalled text are compared with
    cosines: Cosines | None = None  # compares the best of these sentences as wholes
    sentences: tuple[Sentence, ...] = ()  # those nearest to the question, best first, where they were looked for

    @property
    def confidence(self) -> float | None:
        """How likely one of the offers holds the answer, 0..1; None where no part was asked that can tell."""
        if self.blocks and not self.offers:
            return None
        sure = [offer.confidence for offer in self.offers]
        told = [one for one in sure if one is not None]
        return min(1.0, sum(told)) if len(told) == len(sure) else None

    def chosen(self, decisive: float | None) -> SearchOutcome:
        """Return the first offer alone when it is decisive, else all."""
        sure = decisive is not None and self.agreed and self.decisiveness >= decisive
        return dataclasses.replace(self, offers=self.offers[:1]) if sure else self

    def in_frame_order(self, order: Order, temperature: float) -> list[Offer]:
        """Return blocks, then pages, as they are to stand: "relevance" puts the best last, "time" the newest.

        An offer of probability p is cooled to 1 + (temperature - 1) (1 - p / p_best). Fused scores are log p, up to a
        constant. A part alone keeps scores of its own, which then stand for it.
        """
        best = max((offer.score for offer in self.offers), default=0.0)
        offers = [
            dataclasses.replace(
                offer, temperature=1 - (temperature - 1) * math.expm1(offer.score - best), best=offer is self.offers[0]
            )
            for offer in reversed(self.offers)
        ]
        blocks = list(reversed(self.blocks))
        if order == "time":
            for one in (offers, blocks):
                one.sort(key=lambda offer: (offer.stream, offer.begin))
        return [*blocks, *offers]


@dataclasses.dataclass(frozen=True)
class QuestionStates:
    """What the model computes for a question's tokens, by layer, on the CPU."""

    queries: Mapping[int, torch.Tensor]  # un-rotated q [T, Hq, D]
    hidden: Mapping[int, torch.Tensor]  # hidden states [T, hidden size]

    def only(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> QuestionStates:
        """Return the states of these tokens alone."""
        chosen = torch.from_numpy(rows)
        return QuestionStates(
            {layer: q[chosen] for layer, q in self.queries.items()},
            {layer: states[chosen] for layer, states in self.hidden.items()},
        )


@dataclasses.dataclass(frozen=True)
class TappedQuestion:
    """A question as it was read for its search."""

    token_ids: np.ndarray[Any, np.dtype[np.int32]]  # [T]
    states: QuestionStates  # of these tokens
    profile: IndexProfile | None  # heads that the queries are for

    def only(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> TappedQuestion:
        """Return it with these tokens alone."""
        return dataclasses.replace(self, token_ids=self.token_ids[rows], states=self.states.only(rows))


def search(
    frame: Frame,
    prompt: Prompt,
    question: TappedQuestion,
    config: MemoryConfig,
    where: Where = EVERYWHERE,
    page_query: np.ndarray[Any, np.dtype[np.float32]] | None = None,
    rerank: Rerank | None = None,
    narrow: _core.Narrow | None = None,
) -> SearchOutcome:
    """Search that part of the frame's memory for a question, and ask the frame's parts for it.

    `page_query` is the question's vector by the encoder, where pages have vectors. `rerank` returns, for a search that
    names the first places one by one, what to add to the scores of their pages. `narrow` prunes before, too. For a
    question longer than MOST_QUERY_TOKENS its rarest tokens are searched by. A frame without a recalled zone has no
    room, so nothing is found.
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
    budget = config.frame.recalled_tokens
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
            rarest = np.argsort(-self._core.search.idf(tapped.token_ids), kind="stable")[:MOST_QUERY_TOKENS]
            tapped = tapped.only(np.sort(rarest))
        self.ids, self._hidden = tapped.token_ids, tapped.states.hidden
        self._finders = [one for one in self._parts.retrievers if needs_of(one).kinds]
        self.request = _search_inputs(frame.served, tapped, config, page_query, self._parts)
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
) -> dict[str, Any]:
    """Return what `core.search.find` takes of a question, and by which index parts, before parts are asked."""
    keyed, queries, profile = served.keyed, question.states.queries, question.profile
    there = {kind for one in parts.retrievers for kind in needs_of(one).kinds}
    not_there = ({"heads"} if profile is None else set()) | (_BY_A_PART - there)
    kinds = [kind for kind in config.search.index if kind not in not_there]
    by_heads = by_mean = None
    if keyed is not None:
        by_heads = head_queries(keyed, queries, profile) if profile is not None and "heads" in kinds else None
        by_mean = mean_query(keyed, queries) if _by_mean(config, parts) else None
    return {
        "token_ids": question.token_ids,
        "head_queries": by_heads,
        "mean_query": by_mean,
        "page_query": page_query,
        "kinds": kinds or ["lexical"],
    }


def query_layers(served: ModelInterface, profile: IndexProfile | None, config: MemoryConfig, parts: Parts) -> set[int]:
    """Return the layers whose queries a search reads; none for a model that is served by text alone."""
    layers: set[int] = set()
    if served.keyed is None:
        return layers
    if profile is not None and "heads" in config.search.index:
        layers |= {layer for layer, _, _ in profile.heads}
    if _by_mean(config, parts):
        layers.add(served.layers - 1)
    return layers


def _by_mean(config: MemoryConfig, parts: Parts) -> bool:
    """Return whether a search compares a question's mean query with blocks, or topics."""
    return bool(_BY_MEAN & set(config.search.index)) or any(needs_of(one).mean_query for one in parts.retrievers)


def head_queries(
    served: AttachedModel, queries: Mapping[int, torch.Tensor], profile: IndexProfile
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return [T, heads, D]: q of the retrieval heads, each rotated to the profile's fixed distance from every key."""
    rotated = [
        rotate_queries(served.table(layer), queries[layer][:, head : head + 1], profile.query_distance)
        for layer, head, _ in profile.heads
    ]
    return torch.cat(rotated, dim=1).contiguous().numpy()


def mean_query(served: AttachedModel, queries: Mapping[int, torch.Tensor]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return [Hkv * D]: the mean of the last layer's q over tokens and over the query heads that share a KV head."""
    q = queries[served.layers - 1]
    grouped = q.reshape(q.shape[0], served.kv_heads, -1, served.head_dim)
    return grouped.mean(dim=(0, 2)).reshape(-1).contiguous().numpy()


def tap_question_in_steps(
    frame: Frame, prompt_ids: torch.Tensor, question: slice, layers: Sequence[int], hidden_layers: Sequence[int] = ()
) -> Generator[None, None, QuestionStates]:
    """Read a prompt once without a trace. Keep q of `layers` and hidden states of `hidden_layers` of its question.

    Nothing is kept where the model is served by text alone, or nothing is asked for. It yields between two chunks.
    """
    keyed = frame.served.keyed
    if keyed is None or not (layers or hidden_layers):
        return QuestionStates({}, {})
    count = len(prompt_ids)
    queries, hidden = QueryTap(keyed, layers), HiddenTap(frame.served.model, hidden_layers)

    @contextlib.contextmanager
    def tapped() -> Iterator[None]:
        with queries, hidden:  # for a chunk, because others compute between two
            yield
        for tap in (queries, hidden):
            tap.drop_before(count - question.start)

    # Decisions on the way do not tell what the question is answered from.
    with frame.branch(traced=False):
        frame.clear_recalled()
        yield from frame.forward_in_steps(ReadRequest(prompt_ids, "prompt", tap=tapped))
    part_query = slice(
        question.start - count, (question.stop - count) or None
    )  # from the end: an early chunk may be gone
    return QuestionStates(
        _on_host({layer: queries.queries(layer)[part_query] for layer in layers}),
        _on_host({layer: hidden.hidden(layer)[part_query] for layer in hidden_layers}),
    )


tap_question = run_to_end(tap_question_in_steps)


def _on_host(states: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Move all in one copy, so that the device is waited for once."""
    if not states:
        return {}
    together = torch.cat([state.flatten() for state in states.values()]).cpu()
    parts = torch.split(together, [state.numel() for state in states.values()])
    return {layer: part.view_as(states[layer]) for layer, part in zip(states, parts, strict=True)}
