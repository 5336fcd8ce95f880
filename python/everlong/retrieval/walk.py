"""A walk through a memory that took part in a search, as a user reads it: what it saw and where it went."""

from __future__ import annotations

import dataclasses

import numpy as np

import everlong._core as _core


@dataclasses.dataclass(frozen=True)
class WalkPlace:
    """A page that a walk might go to, or went to."""

    block_id: int
    page: int  # of the block's
    span: tuple[int, int]  # tokens of its stream
    stream: int
    came_from: int  # the number of the load that leads to it; -1: the search does


@dataclasses.dataclass(frozen=True)
class WalkStep:
    """A choice: the best of the ways onward, best first, and how likely the policy held each of those listed."""

    ways: tuple[WalkPlace | None, ...]  # None: to end here
    logits: tuple[float, ...]
    taken: int  # of `ways`


@dataclasses.dataclass(frozen=True)
class WalkTrace:
    """What a walk loaded, in order; each load brought its page's neighbours, too. Plain values: JSON keeps all of it,
    and `everlong.pictures.walk` draws it.
    """

    loads: tuple[WalkPlace, ...]
    steps: tuple[WalkStep, ...]
    looked_at: int  # ways
    stopped: bool  # by the policy; else the budget was spent
    pages: int  # that the memory had


def trace_of(core: _core.Memory, report: _core.WalkReport) -> WalkTrace:
    """Of what the core says."""
    loads = tuple(map(place_of, report.loads, report.came_from))
    steps = []
    for step in report.steps:
        ways = tuple(
            None if page.block == 0 else place_of(page, int(came_from))
            for page, came_from in zip(step.pages, step.came_from, strict=True)
        )
        steps.append(WalkStep(ways, tuple(np.asarray(step.logits, dtype=float).tolist()), step.taken))
    return WalkTrace(loads, tuple(steps), report.looked_at, report.stopped, core.stats().pages)


def place_of(page: _core.PageRef, came_from: int = -1) -> WalkPlace:
    """A page as a walk tells of it."""
    return WalkPlace(page.block, page.page, (page.begin, page.end), page.stream, came_from)
