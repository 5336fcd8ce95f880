"""Pages that a walk would visit next, read from disk into RAM before they are asked for (`Walker(ahead_every=32)`).

The Walker predicts the next hops, and their pages are read while the model computes.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import everlong._core as _core
from everlong.errors import CorruptMemoryError, MemoryBusyError, MemoryNotFoundError
from everlong.retrieval.background import Background
from everlong.retrieval.walk import WalkPlace, place_of

_NO_BUDGET = 1 << 40  # tokens
_MOST_EVENTS = 4096  # the newest are kept

Page = tuple[int, int]  # block, and which of its pages


@dataclasses.dataclass
class Prefetch:
    """A walk whose pages were read into RAM, and how many of them came back since."""

    stream_position: int  # where the stream stood
    branched_at: int | None  # as an event of the Memory OS says it
    stream: int
    pages: tuple[WalkPlace, ...] = ()  # with their neighbours, in the walk's order
    used: int = 0  # of these pages

    def event(self) -> dict[str, Any]:
        """Return it as a line of `MemoryModel.trace`."""
        where = {"stream": self.stream, "stream_position": self.stream_position, "branched_at": self.branched_at}
        places = [dict(zip(("block", "page"), (place.block_id, place.page), strict=True)) for place in self.pages]
        return {"what": "prefetch", **where, "restored": [], "prefetched": places, "used": self.used}


@dataclasses.dataclass(frozen=True)
class _PrefetchRequest:
    told: Prefetch
    request: Mapping[str, Any]  # for `core.search.find`
    groups: Sequence[_core.PageRef] | None  # pages to read without a walk; None: those that the walk names


class Prefetcher:
    """Walks by words in its own thread, and reads the pages that it reaches. The store keeps them in its RAM tier.

    It decides nothing: without it, the same pages come back in the same way. `predict` and `came_back` cost the thread
    that answers next to nothing. A page that cannot be read is left to whoever needs it.
    """

    def __init__(self, core: _core.Memory) -> None:
        self._reading = _PrefetchWorker(core)
        self._background = Background(
            self._reading.read,
            name="everlong prefetch",
            doing="what a walk comes to is in RAM",
            failed="pages could not be read ahead",
        )

    @property
    def prefetches(self) -> list[Prefetch]:
        """What was read ahead, oldest first; after a long time only the newest."""
        return self._reading.prefetches()

    def predict(
        self, token_ids: npt.NDArray[np.int32], walk: _core.Walk, prefetch: Prefetch, where: Mapping[str, Any]
    ) -> None:
        """Read what a walk by these words reaches. A request that still waits is dropped, as the newest words say more.

        `where` has the other arguments of `core.search.find`, such as which text is in the frame.
        """
        self._reading.want(
            _PrefetchRequest(prefetch, {**where, "token_ids": token_ids, "kinds": ["lexical"], "walk": walk}, None)
        )
        self._background.wake()

    def read_ahead(self, pages: Sequence[_core.PageRef], prefetch: Prefetch) -> None:
        """Read these pages, for a comparison with a walk."""
        self._reading.want(_PrefetchRequest(prefetch, {}, pages))
        self._background.wake()

    def on_recalled(self, pages: Sequence[_core.PageRef]) -> None:
        """Note that these pages are about to come back."""
        self._reading.on_recalled({(page.block, page.page) for page in pages})

    def settle(self) -> None:
        """Return once all that was predicted is in RAM."""
        self._background.settle()

    def close(self) -> None:
        """End the thread. A second call does nothing."""
        self._background.close()


class _PrefetchWorker:
    """What the thread does. Thread-safe."""

    def __init__(self, core: _core.Memory) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._wanted: _PrefetchRequest | None = None
        self._told: list[Prefetch] = []
        self._unused: dict[Page, Prefetch] = {}  # read ahead, and not come back yet

    def want(self, wanted: _PrefetchRequest) -> None:
        with self._lock:
            self._wanted = wanted

    def prefetches(self) -> list[Prefetch]:
        with self._lock:
            return list(self._told)

    def on_recalled(self, pages: set[Page]) -> None:
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
                    self._unused.setdefault((page.block, page.page), wanted.told)  # whichever request was first

    def _walked(self, wanted: _PrefetchRequest) -> list[_core.PageRef]:
        """Return each load of a walk with its neighbours, in its order; then what the search beside it found."""
        found = self._core.search.find(**wanted.request, token_budget=_NO_BUDGET)
        loads = [] if found.walk is None else found.walk.loads
        beside = int(wanted.request.get("neighbours", 1))
        pages: list[_core.PageRef] = []
        for load in loads:
            block = self._core.blocks.info(load.block)
            of_block = self._core.blocks.pages_of(block.stream, block.begin, block.end)
            pages += of_block[max(0, load.page - beside) : load.page + beside + 1]
        pages += [page for group in found.groups for page in group.pages]
        return list({(page.block, page.page): page for page in pages}.values())

    def _in_ram(self, page: _core.PageRef) -> bool:
        """Read the page, so that the store keeps it; return whether that was possible."""
        try:
            codec = self._core.blocks.read_codec(page.block)
            out = np.empty(self._core.page_bytes(page.end - page.begin, codec), dtype=np.uint8)
            self._core.blocks.read_pages([page], out, codec)
        # Forgotten meanwhile, corrupt, or coded anew: the recall that needs it reports it, or reads it again
        except (MemoryNotFoundError, CorruptMemoryError, MemoryBusyError):
            return False
        return True
