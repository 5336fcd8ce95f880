"""A walk through a memory in a search, as a user reads it: what it saw and where it went."""

from __future__ import annotations

import dataclasses

import numpy as np

import everlong._core as _core


@dataclasses.dataclass(frozen=True)
class WalkPlace:
    """A page that a walk might go to, or went to."""

    block_id: int
    page: int  # which page of the block
    span: tuple[int, int]  # tokens of its stream
    stream: int
    came_from: int  # the number of the load that leads to it; -1: the search does


@dataclasses.dataclass(frozen=True)
class WalkStep:
    """A choice: the best ways onward, best first, and how likely the policy held each of them."""

    ways: tuple[WalkPlace | None, ...]  # None: to end here
    logits: tuple[float, ...]
    taken: int  # index into `ways`


@dataclasses.dataclass(frozen=True)
class WalkTrace:
    """What a walk loaded, in order. Each load brought its page's neighbours, too.

    All values are plain, so JSON keeps all of it. `everlong.pictures.walk` draws it.
    """

    loads: tuple[WalkPlace, ...]
    steps: tuple[WalkStep, ...]
    looked_at: int  # number of ways
    stopped: bool  # by the policy; False: the budget was spent
    pages: int  # pages that the memory had


def trace_of(core: _core.Memory, report: _core.WalkReport) -> WalkTrace:
    """Make a WalkTrace from the core's report."""
    loads = tuple(map(place_of, report.loads, report.came_from))
    steps = []
    for step in report.steps:
        ways = tuple(
            None if page.block == 0 else place_of(page, int(came_from))
            for page, came_from in zip(step.pages, step.came_from, strict=True)
        )
        steps.append(WalkStep(ways, tuple(np.asarray(step.logits, dtype=float).tolist()), step.taken))
    return WalkTrace(loads, tuple(steps), report.looked_at, report.stopped, core.upkeep.stats().pages)


def place_of(page: _core.PageRef, came_from: int = -1) -> WalkPlace:
    """Return a page as a walk tells of it."""
    return WalkPlace(page.block, page.page, (page.begin, page.end), page.stream, came_from)
