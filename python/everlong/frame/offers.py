"""What is offered to a frame to come back: `Offer` (frame/part.py), and what makes offers of pages."""

from __future__ import annotations

from collections.abc import Sequence

import everlong._core as _core
from everlong.frame.part import Offer

Page = tuple[int, int]  # block, and its page
Offers = Sequence[Offer]  # first to last, as they are to stand in the frame; Detail Tokens come before pages


def identity(page: _core.PageRef) -> Page:
    """Return what tells the page from others of its memory."""
    return page.block, page.page


def offers_of(
    pages: Sequence[_core.PageRef],
    found_by: str,
    temperatures: Sequence[float] = (),
    best: Sequence[_core.PageRef] = (),
) -> list[Offer]:
    """Return offers of pages that no search found. Without temperatures all have 1."""
    named = set(map(identity, best))
    return [
        Offer(0.0, page, (found_by,), pages=(page,), temperature=temperature, best=identity(page) in named)
        for page, temperature in zip(pages, temperatures or [1.0] * len(pages), strict=True)
    ]
