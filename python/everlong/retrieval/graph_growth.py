"""A memory's graph, which grows in a thread of its own, off the reading path, with every block that is archived."""

from __future__ import annotations

import logging
from collections.abc import Callable

import everlong._core as _core
from everlong.errors import EverlongError
from everlong.retrieval.background import Background

_LOGGER = logging.getLogger("everlong")

# In one commit, which the disk is waited for: what is read goes on meanwhile.
_BLOCKS_AT_ONCE = 64


class GraphGrowth:
    """Gives the blocks of a memory their place in its graph.

    `archived` tells it that there are new blocks, or vectors of the encoder; `settle` waits until all that can have a
    place have it. Which blocks lack one is found by asking the memory, so nothing is lost when a process dies.
    """

    def __init__(self, core: _core.Memory, share: float) -> None:
        core.set_graph(share=share)
        self._background = Background(
            _Tending(core).tend,
            name="everlong graph",
            doing="the newest blocks are in the graph",
            failed="the graph could not grow",
        )
        self.archived()

    def archived(self) -> None:
        """There are new blocks, or vectors."""
        self._background.wake()

    def settle(self) -> None:
        """Return once every block that is archived now is in the graph; raises what went wrong, once."""
        self._background.settle()

    def close(self) -> None:
        """Settle, and end the thread; a block that found no place gets it when the graph grows next. Twice is once."""
        try:
            self._background.settle()
        except EverlongError as error:  # it can be grown later, and what was read is whole
            _LOGGER.warning("%s", error)
        self._background.close()


class _Tending:
    def __init__(self, core: _core.Memory) -> None:
        self._core = core

    def tend(self, closed: Callable[[], bool]) -> None:
        """All there is, until the growth is closed."""
        while not closed() and self._core.tend_graph(_BLOCKS_AT_ONCE) > 0:
            pass
