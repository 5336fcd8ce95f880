"""A second search, with what the first one found: where a question's own words do not lead to all of its evidence.

"When was the founder of the brewery born?" is answered by two texts, and only the first has a word of the question. The
second one is found by the question with the best sentence of the first search behind it, in the way of multi-hop
retrieval (MDR, Xiong et al. 2021), without another call of a model: by words and by the encoder.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.frame.frame import Frame
from everlong.frame.part import Offer
from everlong.memory.where import Where
from everlong.retrieval.question_states import QuestionStates, TappedQuestion
from everlong.retrieval.quotes import Sentence
from everlong.retrieval.recall import SearchOutcome
from everlong.retrieval.search import NO_BUDGET, search_as_found
from everlong.text.prompt import Prompt

SHARE = 4  # one in so many groups comes from the second search
LEAST_GROUPS = 8  # of fewer it takes one that the question itself may need
_BEST_OF_SECOND = 0.9  # what its best sentence counts beside the first search's best
Ids = npt.NDArray[np.int32]

_OF_TEXT = ("words", "lexical", "encoder")  # kinds that need no states of the model


def by_text(config: MemoryConfig) -> MemoryConfig | None:
    """Return the config of a second search; None where there is to be none, or too few groups to give one away."""
    index = tuple(kind for kind in config.search.index if kind in _OF_TEXT)
    if not config.search.hop or not index or config.search.groups < LEAST_GROUPS:
        return None
    return config.changed(search={"index": index})


def search_again(
    frame: Frame,
    question_ids: Ids,
    found_ids: Ids,
    config: MemoryConfig,
    where: Where,
    narrow: _core.Narrow | None,
) -> tuple[Ids, SearchOutcome]:
    """Search by a question and what was found for it, both token ids [n]. Return what it was searched by, too."""
    ids = np.concatenate([question_ids, found_ids])
    prompt = Prompt(torch.from_numpy(ids.astype(np.int64)), slice(0, len(ids)))
    return ids, search_as_found(frame, prompt, TappedQuestion(ids, QuestionStates({}, {}), None), config, where, narrow)


def with_second(
    first: SearchOutcome, second: Sequence[Offer], config: MemoryConfig
) -> tuple[SearchOutcome, list[Offer]]:
    """Return the first search's outcome with what only the second one found at its end, and these offers.

    They take the places of the last ones, and how likely these were, or stand behind all where nothing takes room.
    """
    count, details = config.search.groups // SHARE, len(first.blocks) * config.detail_slots
    room = config.frame.recalled_tokens - (details if config.answer.recall_mode == "both" else 0)
    if config.answer.quotes_alone:
        before, dropped, room = list(first.offers), [], NO_BUDGET
    else:
        places = max(1, config.search.groups - count)
        before, dropped = list(first.offers[:places]), list(first.offers[places:])
    new: list[Offer] = []
    for offer in second:
        fits = sum(map(_tokens, (*before, *new, offer))) <= room
        if len(new) < count and fits and not any(_overlap(offer, one) for one in (*before, *new)):
            new.append(offer)
    for offer in dropped[: count - len(new)]:
        if sum(map(_tokens, (*before, *new, offer))) <= room and not any(_overlap(offer, one) for one in new):
            before.append(offer)
    sure = [offer.confidence for offer in dropped if offer not in before]
    unsure = None if before[-1].confidence is None else 0.0
    told = itertools.chain(sure, itertools.repeat(unsure))
    new = [
        dataclasses.replace(offer, score=before[-1].score, confidence=one)
        for offer, one in zip(new, told, strict=False)
    ]
    return (dataclasses.replace(first, offers=(*before, *new)), new) if new else (first, [])


def in_scale(sentences: Sequence[Sentence], best: float) -> list[Sentence]:
    """Return sentences of a second search with scores beside a first one's best: their best counts a little less.

    The two searches ask by other words, so their scores are of other sizes.
    """
    if not sentences or min(best, sentences[0].score) <= 0:
        return [dataclasses.replace(one, second=True) for one in sentences]
    scale = _BEST_OF_SECOND * best / sentences[0].score
    return [dataclasses.replace(one, score=scale * one.score, second=True) for one in sentences]


def _overlap(one: Offer, other: Offer) -> bool:
    return one.stream == other.stream and one.begin < other.end and other.begin < one.end


def _tokens(offer: Offer) -> int:
    return sum(page.end - page.begin for page in offer.pages)
