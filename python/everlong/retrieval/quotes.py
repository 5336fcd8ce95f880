"""Of what came back, the sentences that are nearest to the question: what is put before it in words.

A small model reads over what it is not shown: where a page has the answer it gives that half as often as where the
sentence stands alone (docs/measured/indexes.md). So the best sentences of the groups that came back stand once more
right before the question, in its own turn.

A sentence's score is the late interaction of the part `meaning` within it (learned/towers.py), the weighted mean of
each question token's best cosine, by the vectors that are stored with its block; and the share of the question's words
that it has, each by its inverse document frequency. Without vectors words alone decide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.text.boundaries import TextBoundaries

# What the share of words counts beside the mean cosine: of drawn facts of the development set the right sentence is
# first in 99 %, of paraphrases in 33 (benchmarks/quotes_recall.py); with 0 in 88 and 38, with 0.5 in 100 and 25.
WORDS_WEIGHT = 0.2
_LEAST_TOKENS, _MOST_TOKENS = 4, 96  # of a sentence; a longer one is cut there
_BEYOND = 48  # tokens before and behind a group, where a sentence of it may begin and end

Floats = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Tokens of a stream that end where a sentence does, and how near they are to a question."""

    stream: int
    begin: int
    end: int
    score: float


@dataclasses.dataclass(frozen=True)
class Towers:
    """By which vectors sentences are scored: the pack's, one for every so many tokens of a page."""

    id: str
    group_tokens: int


def nearest_sentences(
    core: _core.Memory,
    boundaries: TextBoundaries,
    groups: Sequence[_core.FoundGroup],
    asked: npt.NDArray[np.int32],
    query: Floats | None,
    towers: Towers | None,
    count: int,
) -> list[Sentence]:
    """The best `count` sentences of the groups, best first.

    asked [T]: the question's token ids. query [T, dimension]: its vectors, whose norms are what they weigh; None
    without `towers`. A group that was forgotten meanwhile has none.
    """
    found: list[Sentence] = []
    for group in groups:
        try:
            begin, ids = _with_what_is_beside(core, group)
            vectors, places = (
                _vectors(core, group, towers) if towers is not None and query is not None else (None, None)
            )
        except MemoryNotFoundError:
            continue
        for first, last in _sentences(boundaries, ids, group.begin - begin, group.end - begin):
            words = _share_of_words(core, asked, ids[first:last])
            cosine = 0.0
            if vectors is not None and places is not None and query is not None:
                cosine = _mean_cosine(query, vectors[(places >= begin + first) & (places < begin + last)])
            score = cosine + WORDS_WEIGHT * words
            found.append(Sentence(group.stream, begin + first, begin + last, score))
    found.sort(key=lambda sentence: -sentence.score)  # stable: of equals the better group's
    chosen: list[Sentence] = []
    for sentence in found:
        if not any(
            one.stream == sentence.stream and one.begin < sentence.end and sentence.begin < one.end for one in chosen
        ):
            chosen.append(sentence)
    return chosen[:count]


def _with_what_is_beside(core: _core.Memory, group: _core.FoundGroup) -> tuple[int, npt.NDArray[np.int32]]:
    """Token ids of a group and of what stands around it, where that is there; and the first one's place."""
    for beyond in (_BEYOND, 0):
        begin, end = max(0, group.begin - beyond), min(core.stream_end(group.stream), group.end + beyond)
        try:
            return begin, core.token_ids(group.stream, begin, end)
        except MemoryNotFoundError:
            if beyond == 0:
                raise
    raise AssertionError


def _sentences(
    boundaries: TextBoundaries, ids: npt.NDArray[np.int32], first: int, last: int
) -> Iterator[tuple[int, int]]:
    """Sentences among ids [n] that have some of [first, last): where each begins and ends."""
    ends = [end for end, _ in boundaries.find(torch.from_numpy(ids.astype(np.int64)))]
    begin = 0
    for end in [*ends, len(ids)]:
        for cut in range(begin, end, _MOST_TOKENS):
            piece = (cut, min(cut + _MOST_TOKENS, end))
            if piece[1] - piece[0] >= _LEAST_TOKENS and piece[0] < last and first < piece[1]:
                yield piece
        begin = end


def _vectors(
    core: _core.Memory, group: _core.FoundGroup, towers: Towers
) -> tuple[Floats, npt.NDArray[np.int64]] | tuple[None, None]:
    """Unit vectors [n, dimension] of the group's pages, and the place of each one's middle token; or none."""
    rows, places = [], []
    for page in group.pages:
        kept = core.block_tensors(page.block).get(f"meaning.{towers.id}")
        if kept is None:
            continue
        before, count = _rows_of(core, page, towers.group_tokens)
        rows.append(kept[before : before + count])
        places.append(page.begin + np.arange(len(rows[-1])) * towers.group_tokens + towers.group_tokens // 2)
    if not rows:
        return None, None
    vectors = np.concatenate(rows).astype(np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9), np.concatenate(places)


def _rows_of(core: _core.Memory, page: _core.PageRef, group_tokens: int) -> tuple[int, int]:
    """Which rows of its block's vectors are a page's: those of the pages before it, and how many."""
    block = core.block(page.block)
    full = core.manifest().page_tokens
    before = page.page * -(-full // group_tokens)
    tokens = min(full, block.end - block.begin - page.page * full)
    return before, -(-tokens // group_tokens)


def _mean_cosine(query: Floats, vectors: Floats) -> float:
    if len(vectors) == 0:
        return 0.0
    weights = np.linalg.norm(query, axis=1)
    return float((query @ vectors.T).max(axis=1).sum() / max(float(weights.sum()), 1e-9))


def _share_of_words(core: _core.Memory, asked: npt.NDArray[np.int32], ids: npt.NDArray[np.int32]) -> float:
    words = np.unique(asked)
    rare = core.idf(words)
    return float(rare[np.isin(words, ids)].sum() / max(float(rare.sum()), 1e-9))
