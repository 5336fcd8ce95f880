"""Grows a memory's graph with every archived block, in a thread of its own, off the reading path."""

from __future__ import annotations

import logging
from collections.abc import Callable

import everlong._core as _core
from everlong.errors import EverlongError
from everlong.retrieval.background import Background

_LOGGER = logging.getLogger("everlong")

# In one commit, which waits for the disk. Reading goes on meanwhile.
_BLOCKS_AT_ONCE = 64


class GraphGrowth:
    """Gives the blocks of a memory their place in its graph.

    `archived` tells it that there are new blocks, or vectors of the encoder. `settle` waits until all blocks that can
    have a place have it. It asks the memory which blocks lack one, so nothing is lost when a process dies.
    """

    def __init__(self, core: _core.Memory, share: float) -> None:
        core.graph.grow(share=share)
        self._background = Background(
            _GardenerWorker(core).tend,
            name="everlong graph",
            doing="the newest blocks are in the graph",
            failed="the graph could not grow",
        )
        self.archived()

    def archived(self) -> None:
        """Say that there are new blocks, or vectors."""
        self._background.wake()

    def settle(self) -> None:
        """Return once every block that is archived now is in the graph. Raise what went wrong, once."""
        self._background.settle()

    def close(self) -> None:
        """Settle, and end the thread. A block without a place gets it when the graph grows next. Twice does nothing."""
        try:
            self._background.settle()
        except EverlongError as error:  # it can be grown later, and what was read is whole
            _LOGGER.warning("%s", error)
        self._background.close()


class _GardenerWorker:
    def __init__(self, core: _core.Memory) -> None:
        self._core = core

    def tend(self, closed: Callable[[], bool]) -> None:
        """Do all there is, until the growth is closed."""
        while not closed() and self._core.graph.tend(_BLOCKS_AT_ONCE) > 0:
            pass
