"""Re-ranking by the model: of the pages that a search finds first, those that make the question likely come first.

A candidate is a page and those beside it. Its archived keys and values come back into a small window of their own
(frame/windows.py). One forward of the question alone then says how likely it is after them:

    lift = sum over the question's tokens of log p(token | pages, what is asked before it)
           - the same without any pages                                                          in nats

Reading the pages would give the same (Sachan et al., EMNLP 2022, rank passages by it). This costs the question alone.
The lift, a logarithm, is added to log-odds, which fused scores are (index/fusion.h). It has a weight, because a model
is surer of itself than it should be.

Layers with a state of their own (sliding windows, linear attention) have none of it in an archive. A model with such
layers reads its candidates again as text. A model that is served by text alone re-ranks nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.frame.kv_frame import KvFrame
from everlong.frame.offers import Page, identity
from everlong.frame.windows import archived_windows, window_tokens
from everlong.models.attach import AttachedModel
from everlong.models.releases import cache_argument
from everlong.text.prompt import Prompt

_LOGGER = logging.getLogger("everlong")

MOST_CANDIDATES = 64
# What a nat of lift adds to a fused score. This value found most in benchmarks/rerank_recall.py.
LIFT_WEIGHT = 0.5
_FIRST_CANDIDATES = 8  # re-ranked however long they take; their time says how many more fit
_WINDOW_TOKENS = 192  # of a candidate's pages, its own in the middle
_MOST_ASKED_TOKENS = 256  # of the prompt up to the question's end: a candidate costs more with each
_BATCH_BYTES = 256 << 20  # of keys, values and logits that a forward takes


@dataclasses.dataclass(frozen=True)
class RerankQuery:
    """What is put after every window, and which of its tokens are the question's."""

    inputs: torch.Tensor  # int64 [n], up to the last token but one
    targets: torch.Tensor  # int64 [t], t <= n: what comes next after the last t inputs

    @staticmethod
    def of(prompt: Prompt, most: int = _MOST_ASKED_TOKENS) -> RerankQuery:
        """Take the newest `most` tokens of a prompt, up to its question's end.

        A question with nothing before it is asked from its second token on. Archived keys do not give the logits of its
        first.
        """
        ids = prompt.ids[: prompt.question.stop]
        cut = max(0, len(ids) - most)
        return RerankQuery(ids[cut:-1], ids[max(prompt.question.start, cut + 1) :])


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A place in the memory, as it is read: a page that was found, and those beside it."""

    page: _core.PageRef
    window: Sequence[_core.PageRef]  # in order, `page` among them
    # Pages of `window` that were found and that no earlier candidate had, each with its share of `page`'s score. They
    # get that share of what the lift adds, too. So what widens a group (index/fusion.h) does so as before.
    shares: Sequence[tuple[_core.PageRef, float]]


def candidates(result: _core.SearchResult, neighbours: int, page_tokens: int) -> list[Candidate]:
    """Return the first places of a search that named each of its pages, best first.

    A page that stands in a better candidate's window is no place of its own: it comes back with that one.
    """
    beside = min(neighbours, max(0, _WINDOW_TOKENS // page_tokens - 1) // 2)
    hits = [
        (score, number, at)
        for number, group in enumerate(result.groups)
        for at, score in enumerate(group.page_scores)
        if np.isfinite(score)
    ]
    hits.sort(key=lambda hit: -hit[0])
    left = {(number, at): score for score, number, at in hits}
    chosen: list[Candidate] = []
    for score, number, at in hits:
        if (number, at) not in left:
            continue
        pages = result.groups[number].pages
        places = range(max(0, at - beside), min(len(pages), at + beside + 1))
        shares = [
            (pages[place], 1.0 if place == at else max(0.0, left[number, place]) / max(score, 1e-9))
            for place in places
            if (number, place) in left
        ]
        for place in places:
            left.pop((number, place), None)
        chosen.append(Candidate(pages[at], [pages[place] for place in places], shares))
        if len(chosen) == MOST_CANDIDATES:
            break
    return chosen


class Reranker:
    """Says how much likelier a question is after pages of a frame's memory. For the frame's thread alone."""

    def __init__(self, frame: KvFrame, start_ids: Sequence[int]) -> None:
        """start_ids: what the tokenizer puts before every text."""
        self._frame = frame
        self._start = list(start_ids)
        self._by_archive = is_archived_whole(frame.served)

    def added_scores(
        self, prompt: Prompt, places: Sequence[Candidate], seconds: float
    ) -> list[tuple[_core.PageRef, float]]:
        """Return what `core.search.find` is to add to the scores of the first candidates, as time allows."""
        return score_bonus(self.lifts(prompt, places, seconds))

    def lifts(self, prompt: Prompt, places: Sequence[Candidate], seconds: float) -> list[tuple[Candidate, float]]:
        """Return how many nats likelier the first candidates make the question, for as many as fit into the time.

        The first few are looked at however long they take.
        """
        question = RerankQuery.of(prompt, self._room(places))
        if len(question.targets) == 0 or not places:
            return []
        started = time.monotonic()
        without = float(self.log_likelihoods(question, [()])[0])
        lifts: list[tuple[Candidate, float]] = []
        looked_at = 0
        rows = self._rows(question, places)
        while looked_at < len(places):
            count = min(rows, len(places) - looked_at)
            if looked_at < _FIRST_CANDIDATES:
                count = min(count, _FIRST_CANDIDATES - looked_at)
            else:
                taken = time.monotonic() - started
                count = int(min(count, (seconds - taken) * looked_at / max(taken, 1e-9)))
            if count < 1:
                break
            behind = self._likelihoods_of(question, places[looked_at : looked_at + count])
            lifts += [(place, likelihood - without) for place, likelihood in behind]
            looked_at += count
        if lifts:
            best = max(range(len(lifts)), key=lambda place: lifts[place][1])
            _LOGGER.info(
                "re-ranked %d of %d candidates in %.2f s: the best makes the question %.1f nats likelier, and was "
                "number %d of the search",
                len(lifts),
                len(places),
                time.monotonic() - started,
                lifts[best][1],
                best + 1,
            )
        return lifts

    @torch.no_grad()
    def log_likelihoods(
        self, query: RerankQuery, groups: Sequence[Sequence[_core.PageRef]], *, as_text: bool = False
    ) -> torch.Tensor:
        """Return fp64 [groups], in nats: the log likelihood of the targets after each group of pages.

        An empty group is nothing but a beginning. `as_text`: the pages are read, as a model that is not archived whole
        needs. MemoryNotFoundError where a page was forgotten.
        """
        by_archive = self._by_archive and not as_text
        logits = (self._logits_by_archive if by_archive else self._logits_by_text)(query, groups)
        targets = query.targets.to(logits.device)[:, None]
        # A row at a time: in fp32 the whole batch may be large.
        sums = [row.float().log_softmax(-1).gather(-1, targets).double().sum() for row in logits]
        return torch.stack(sums).cpu()

    def _logits_by_archive(self, query: RerankQuery, groups: Sequence[Sequence[_core.PageRef]]) -> torch.Tensor:
        """Return [groups, t, V] of the forward of the question alone."""
        served, rows, tokens = self._frame.served, len(groups), len(query.inputs)
        windows = archived_windows(self._frame, groups)
        positions = windows.next_positions[:, None] + torch.arange(tokens, device=served.device)
        logits: torch.Tensor = served.model(
            input_ids=query.inputs.to(served.device).expand(rows, -1),
            attention_mask=torch.cat([windows.mask, windows.mask.new_ones(rows, tokens)], dim=1),
            position_ids=positions,
            **{cache_argument(served.model): windows.cache},
            use_cache=True,
            logits_to_keep=len(query.targets),
        ).logits
        return logits

    def _logits_by_text(self, query: RerankQuery, groups: Sequence[Sequence[_core.PageRef]]) -> torch.Tensor:
        """Return the same by a forward of each group's tokens and the question, in one batch."""
        served = self._frame.served
        texts = [torch.cat([*self._text(pages), query.inputs]) for pages in groups]
        longest = max(map(len, texts))
        ids = torch.zeros(len(texts), longest, dtype=torch.int64, device="cpu")
        mask = torch.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, longest - len(text) :] = text
            mask[row, longest - len(text) :] = 1
        positions = (mask.cumsum(1) - 1).clamp(min=0) + served.first_position
        logits: torch.Tensor = served.model(
            input_ids=ids.to(served.device),
            attention_mask=mask.to(served.device),
            position_ids=positions.to(served.device),
            use_cache=False,
            logits_to_keep=len(query.targets),
        ).logits
        return logits

    def _text(self, pages: Sequence[_core.PageRef]) -> Iterator[torch.Tensor]:
        yield torch.tensor(self._start, dtype=torch.int64, device="cpu")
        for page in pages:
            ids = self._frame.memory.core.blocks.token_ids(page.stream, page.begin + page.sink_tokens, page.end)
            yield torch.from_numpy(ids.astype(np.int64))

    def _room(self, places: Sequence[Candidate]) -> int:
        """Return how many tokens fit after the longest window: nothing lies further apart than in the frame."""
        longest = max((window_tokens(place.window) for place in places), default=0)
        before = max(self._frame.os.sinks, len(self._start))
        return max(1, min(_MOST_ASKED_TOKENS, self._frame.config.frame.tokens - before - longest))

    def _rows(self, query: RerankQuery, places: Sequence[Candidate]) -> int:
        """Return how many windows a forward takes."""
        served = self._frame.served
        longest = self._frame.os.sinks + max(window_tokens(place.window) for place in places)
        # Keys and values as they are decoded, in the cache, and longer by the question in the layer that is computed.
        of_window = served.kv_token_bytes * (2 * longest + len(query.inputs))
        vocabulary = served.model.config.get_text_config(decoder=True).vocab_size
        of_logits = len(query.targets) * vocabulary * served.dtype.itemsize
        return max(1, int(_BATCH_BYTES // (of_window + of_logits)))

    def _likelihoods_of(self, query: RerankQuery, places: Sequence[Candidate]) -> list[tuple[Candidate, float]]:
        """Return the likelihoods of the candidates that are still there."""
        while there := self._there(places):
            try:
                likelihoods = self.log_likelihoods(query, [place.window for place in there])
                return list(zip(there, likelihoods.tolist(), strict=True))
            except MemoryNotFoundError:
                if self._there(there) == there:  # something else is missing
                    raise
        return []

    def _there(self, places: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates without those that were forgotten since the search."""
        there: list[Candidate] = []
        forgotten: set[Page] = set()
        for block in {page.block for place in places for page in place.window}:
            try:
                self._frame.memory.core.blocks.info(block)
            except MemoryNotFoundError:
                forgotten |= {identity(page) for place in places for page in place.window if page.block == block}
        for place in places:
            if identity(place.page) not in forgotten:
                window = [page for page in place.window if identity(page) not in forgotten]
                shares = [(page, share) for page, share in place.shares if identity(page) not in forgotten]
                there.append(Candidate(place.page, window, shares))
        return there


def score_bonus(
    lifts: Sequence[tuple[Candidate, float]], weight: float = LIFT_WEIGHT
) -> list[tuple[_core.PageRef, float]]:
    """Return what lifts add to the scores of pages.

    All is counted from the least lift, so that no page that was not looked at passes those that were.
    """
    least = min((lift for _, lift in lifts), default=0.0)
    return [(page, weight * (lift - least) * share) for place, lift in lifts for page, share in place.shares]


def is_archived_whole(served: AttachedModel) -> bool:
    """Return whether the archive has what every layer of the model knows of a token."""
    return not served.own_layers()
