"""What a branch of a frame undoes: a copy of each zone's slots from before its first change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from everlong.kv_cache.buffers import SlotSnapshot
from everlong.kv_cache.cache import ResidentCache

# front: all slots before rolling; kept: the masters of kept tokens, which change in place
Zone = Literal["front", "rolling", "kept"]


class Undo:
    """Keeps what a cache held. Outside of a branch nothing is kept."""

    def __init__(self, cache: ResidentCache) -> None:
        self._cache = cache
        self._saved: dict[Zone, SlotSnapshot | None] | None = None

    def remember(self) -> Callable[[], None]:
        """Begin a branch. Return a call that puts back what the cache holds now, to be called once."""
        cache, outer = self._cache, self._saved
        layout, own = cache.layout(), cache.own.snapshot()
        changed: dict[Zone, SlotSnapshot | None] = {}
        self._saved = changed

        def put_back() -> None:
            for snapshot in changed.values():
                if snapshot is not None:
                    cache.buffers.restore(snapshot)
            cache.own.restore(own)
            self._saved = outer
            cache.put_back(layout)

        return put_back

    def before_change(self, zone: Zone) -> None:
        """Keep the zone, which is about to change."""
        if self._saved is None or zone in self._saved:
            return
        cache = self._cache
        if zone == "kept":
            self._saved[zone] = None  # the layout has them
            cache.kept = cache.kept.copy()
        elif zone == "rolling":
            self._saved[zone] = cache.buffers.snapshot(cache.rolling_slot, cache.rolling_slots)
        else:
            self._saved[zone] = cache.buffers.snapshot(cache.begin, cache.rolling_slot - cache.begin)
