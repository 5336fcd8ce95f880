"""What is offered to a frame to come back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import everlong._core as _core

Page = tuple[int, int]  # block, and its page


@dataclasses.dataclass(frozen=True)
class Recalled:
    """What is to come back: pages, first to last, their attention temperatures, and which of them matter most."""

    pages: Sequence[_core.PageRef] = ()
    temperatures: Sequence[float] = ()  # empty: all 1
    best: Sequence[_core.PageRef] = ()  # pages of the most relevant group; empty: the last group
    # Blocks that come as Detail Tokens before the pages, first to last, where the frame has details.
    blocks: Sequence[int] = ()


RecallPages = Callable[[_core.Recall], Recalled]


def identity(page: _core.PageRef) -> Page:
    """Return what tells the page from others of its memory."""
    return page.block, page.page
