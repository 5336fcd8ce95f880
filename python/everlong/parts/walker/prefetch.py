"""What a walk would visit next is read from disk into RAM before it is asked for (`Walker(ahead_every=32)`).

The four-MI100 design, 3.4.2: the Walker predicts next hops, whose pages are on their way while the model computes.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import everlong._core as _core
from everlong.errors import CorruptMemoryError, MemoryNotFoundError
from everlong.retrieval.background import Background
from everlong.retrieval.walk import WalkPlace, place_of

_NO_BUDGET = 1 << 40  # tokens
_MOST_EVENTS = 4096  # the newest are kept

Page = tuple[int, int]  # block, and which of its pages


@dataclasses.dataclass
class Prefetch:
    """A walk whose pages were read into RAM, and what of them came back since."""

    stream_position: int  # where the stream stood
    branched_at: int | None  # as an event of the Memory OS says it
    stream: int
    pages: tuple[WalkPlace, ...] = ()  # with their neighbours, in order of the walk
    used: int = 0  # of these pages

    def event(self) -> dict[str, Any]:
        """As a line of `MemoryModel.trace`."""
        where = {"stream": self.stream, "stream_position": self.stream_position, "branched_at": self.branched_at}
        places = [dict(zip(("block", "page"), (place.block_id, place.page), strict=True)) for place in self.pages]
        return {"what": "prefetch", **where, "restored": [], "prefetched": places, "used": self.used}


@dataclasses.dataclass(frozen=True)
class _Wanted:
    told: Prefetch
    request: Mapping[str, Any]  # of `core.search`
    groups: Sequence[_core.PageRef] | None  # pages to read without a walk; None: those that the walk names


class Prefetcher:
    """Walks by words, in a thread of its own, and reads what it comes to; the store keeps that in its RAM tier.

    Nothing is decided here: what comes back, and how, is the same without. Of the thread that answers, `predict` and
    `came_back` cost it next to nothing. What cannot be read is left to whoever needs it.
    """

    def __init__(self, core: _core.Memory) -> None:
        self._reading = _Reading(core)
        self._background = Background(
            self._reading.read,
            name="everlong prefetch",
            doing="what a walk comes to is in RAM",
            failed="pages could not be read ahead",
        )

    @property
    def told(self) -> list[Prefetch]:
        """What was read ahead, oldest first; of a long life the newest."""
        return self._reading.told_so_far()

    def predict(
        self, token_ids: npt.NDArray[np.int32], walk: _core.Walk, told: Prefetch, where: Mapping[str, Any]
    ) -> None:
        """Read what a walk by these words comes to. One that waits yet is given up: the newest words say more.

        `where`: what else `core.search` takes, such as which text is in the frame.
        """
        self._reading.want(_Wanted(told, {**where, "token_ids": token_ids, "kinds": ["lexical"], "walk": walk}, None))
        self._background.wake()

    def read_ahead(self, pages: Sequence[_core.PageRef], told: Prefetch) -> None:
        """Read these pages: what a walk is compared with."""
        self._reading.want(_Wanted(told, {}, pages))
        self._background.wake()

    def came_back(self, pages: Sequence[_core.PageRef]) -> None:
        """These are about to come back."""
        self._reading.came_back({(page.block, page.page) for page in pages})

    def settle(self) -> None:
        """Return once all that was predicted is in RAM."""
        self._background.settle()

    def close(self) -> None:
        """End the thread. Twice does nothing."""
        self._background.close()


class _Reading:
    """What the thread does; all threads may call it."""

    def __init__(self, core: _core.Memory) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._wanted: _Wanted | None = None
        self._told: list[Prefetch] = []
        self._unused: dict[Page, Prefetch] = {}  # read ahead, and not come back yet

    def want(self, wanted: _Wanted) -> None:
        with self._lock:
            self._wanted = wanted

    def told_so_far(self) -> list[Prefetch]:
        with self._lock:
            return list(self._told)

    def came_back(self, pages: set[Page]) -> None:
        with self._lock:
            for page in pages & self._unused.keys():
                self._unused.pop(page).used += 1

    def read(self, closed: Any) -> None:
        while not closed():
            with self._lock:
                wanted, self._wanted = self._wanted, None
            if wanted is None:
                return
            pages = self._walked(wanted) if wanted.groups is None else list(wanted.groups)
            with self._lock:
                self._told = [*self._told[1 - _MOST_EVENTS :], wanted.told]
            for page in pages:
                if closed() or not self._in_ram(page):
                    continue
                with self._lock:
                    wanted.told.pages = (*wanted.told.pages, place_of(page))
                    self._unused.setdefault((page.block, page.page), wanted.told)  # whoever was first

    def _walked(self, wanted: _Wanted) -> list[_core.PageRef]:
        """Each load of a walk with its neighbours, in its order; then what the search beside it found."""
        found = self._core.search(**wanted.request, token_budget=_NO_BUDGET)
        loads = [] if found.walk is None else found.walk.loads
        beside = int(wanted.request.get("neighbours", 1))
        pages: list[_core.PageRef] = []
        for load in loads:
            block = self._core.block(load.block)
            of_block = self._core.pages_of(block.stream, block.begin, block.end)
            pages += of_block[max(0, load.page - beside) : load.page + beside + 1]
        pages += [page for group in found.groups for page in group.pages]
        return list({(page.block, page.page): page for page in pages}.values())

    def _in_ram(self, page: _core.PageRef) -> bool:
        """Read it, so that the store keeps it; whether that could be done."""
        out = np.empty(self._core.page_bytes(page.end - page.begin), dtype=np.uint8)
        try:
            self._core.read_pages([page], out)
        except (MemoryNotFoundError, CorruptMemoryError):  # forgotten meanwhile; or told to whom it comes back for
            return False
        return True
