"""Which word pieces of a text belong to which group of a memory's tokens, and which are encoded together.

A sentence is encoded by itself. Among its neighbours a sentence about another thing would take on what they say, and be
found less well by what it says itself.

A memory's tokenizer and the encoder's cut a text at other places. So a group of tokens is known by its characters. It
pools the states of the word pieces that overlap them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from everlong.text.sentences import TURN

WINDOW = 256  # word pieces that are encoded at once; MiniLM was trained on no more
SHORTEST = 10  # word pieces of a sentence: a shorter one is encoded with the next

_APART = re.compile(rf"\n[^\S\n]*\n\s*|{TURN.pattern}")

Places = npt.NDArray[np.int64]


def group_ends(tokens: int, page_tokens: int, group_tokens: int) -> list[int]:
    """Return one past the last token of each group of a block. Groups do not cross pages."""
    ends: list[int] = []
    for page in range(0, tokens, page_tokens):
        last = min(page + page_tokens, tokens)
        ends += [min(end, last) for end in range(page + group_tokens, last + group_tokens, group_tokens)]
    return ends


def characters_of_groups(
    decoded_characters: Callable[[int], int], first: int, ends: list[int]
) -> tuple[Places, Places]:
    """Return the first character of each group, and one past its last.

    decoded_characters(n): how many characters the first n tokens say; the block's begin after `first` tokens. `ends`
    counts from there. Tokens may be parts of a character: then all groups that have some of it share it.
    """
    begins = np.asarray([decoded_characters(first + at) for at in [0, *ends[:-1]]], dtype=np.int64)
    lasts = np.asarray([decoded_characters(first + at) for at in ends], dtype=np.int64)
    before = np.asarray([decoded_characters(first + at - 1) for at in ends], dtype=np.int64)
    return begins, lasts + (lasts == before)  # a token that says nothing yet is a part of the next character


def pieces_of_groups(begins: Places, ends: Places, piece_begins: Places, piece_ends: Places) -> tuple[Places, Places]:
    """Return the first word piece that overlaps each group's characters, and one past the last.

    A group without any gets those of the group before it, or else of the next that has some. None has any where there
    are no pieces.
    """
    first = np.searchsorted(piece_ends, begins, side="right")
    last = np.searchsorted(piece_begins, ends, side="left")
    has = np.flatnonzero(last > first)
    if len(has) == 0:
        return np.zeros_like(first), np.zeros_like(last)
    nearest = has[np.maximum(np.searchsorted(has, np.arange(len(first)), side="right") - 1, 0)]
    return first[nearest], last[nearest]


def stored_sentences(sentences: Sequence[tuple[int, int]], first: Places, last: Places, page: Places) -> Places:
    """Return the number of the sentence that each group keeps. `page` is each group's.

    A page keeps the sentences that lie in it by half or more, or else the one that does most. Where it has fewer groups
    than sentences, those that lie in it least are left out; where it has more, some groups keep the same one.
    """
    begins, ends = (np.asarray(at, dtype=np.int64) for at in zip(*sentences, strict=True))
    kept = np.empty_like(first)
    for groups in np.split(np.arange(len(page)), np.flatnonzero(np.diff(page)) + 1):
        inside = np.minimum(ends, last[groups].max()) - np.maximum(begins, first[groups].min())
        share = inside / (ends - begins)
        count = min(len(groups), max(1, int((share >= 0.5).sum())))
        of_page = np.sort(np.argsort(-share, kind="stable")[:count])
        kept[groups] = of_page[np.arange(len(groups)) * count // len(groups)]
    return kept


def means_of_runs(rows: torch.Tensor, first: Places, last: Places) -> torch.Tensor:
    """Return means [groups, width] fp32 of rows[first : last] of rows [n, width]; zeros of none."""
    counts = torch.from_numpy(last - first)
    owner = torch.repeat_interleave(torch.arange(len(first)), counts)
    at = torch.from_numpy(first)[owner] + torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner]
    sums = rows.new_zeros(len(first), rows.shape[-1]).index_add(0, owner, rows[at])
    return sums / counts.clamp(min=1)[:, None]


def sentences(
    ids: Sequence[int] | Places,
    stops: frozenset[int],
    closers: frozenset[int],
    longest: int,
    paragraphs: frozenset[int] = frozenset(),
) -> list[tuple[int, int]]:
    """Return where sentences of word pieces begin and end. All pieces are in one of them.

    A sentence ends behind a piece of `stops`, and behind those of `closers` that follow it, and before a place of
    `paragraphs`. One of more than `longest` is cut.
    """
    found: list[tuple[int, int]] = []
    begin, stopped = 0, False
    for at, piece in enumerate(map(int, ids)):
        ended = at in paragraphs or (stopped and piece not in closers)
        if (ended and at - begin >= SHORTEST) or at - begin == longest:
            found.append((begin, at))
            begin = at
        stopped = piece in stops or (stopped and piece in closers)
    if begin < len(ids):
        found.append((begin, len(ids)))
    return found


def paragraphs_of(text: str, begins: Places) -> frozenset[int]:
    """Return the word pieces that begin a paragraph: behind a blank line, or where somebody else speaks."""
    ends = [line.end() for line in _APART.finditer(text)]
    behind = np.searchsorted(begins, ends, side="left")
    return frozenset(int(at) for at in behind if 0 < at < len(begins))


def stored_pieces(ids: Any, begins: Places, ends: Places, unknown: int) -> tuple[Any, Places, Places]:
    """Return the word pieces without those that the encoder does not know: they say nothing of the text."""
    known = ids != unknown
    return ids[known], begins[known], ends[known]
