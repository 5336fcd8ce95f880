"""MemoryModels that are open when the interpreter ends. They are closed while Python and torch still work."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Protocol

from everlong.frame.frame import Frame
from everlong.generation.exclusive import CallGuard

_LOGGER = logging.getLogger("everlong")


class _Closable(Protocol):
    frame: Frame
    _guard: CallGuard

    def close(self) -> None: ...


_open: weakref.WeakSet[_Closable] = weakref.WeakSet()
os.register_at_fork(after_in_child=_open.clear)  # they are the parent's


def close_at_exit(model: _Closable) -> None:
    """Close it when the interpreter ends, if it is there by then. Closing it before does no harm."""
    _open.add(model)
    # What is registered last is called first: before the finalizers of what this model is made of.
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def _close_all() -> None:
    for model in list(_open):
        model.frame.steps.end_other_threads()
        for last in (model._guard.shut_down, model.close):
            try:
                last()
            except BaseException as error:  # the rest is closed all the same
                _LOGGER.warning("the end of the interpreter did not close all of a MemoryModel: %s", error)
