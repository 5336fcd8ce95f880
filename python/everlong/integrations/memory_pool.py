"""Memories that are opened by their names, one for all in a process that name the same."""

from __future__ import annotations

import pathlib
import threading
import weakref
from collections.abc import Sequence

from everlong.errors import ClosedError
from everlong.frame.model_setup import configured
from everlong.generation.memory_model import MemoryModel
from everlong.models import load

_LOCK = threading.Lock()
_OPEN: weakref.WeakValueDictionary[tuple[str, str], MemoryModel] = weakref.WeakValueDictionary()


def open_shared(model: str, folder: str, settings: Sequence[str] = ()) -> MemoryModel:
    """Return the memory in a folder with its model, by name or path, as it is open here already, or opened now.

    `settings` are those of `MemoryConfig.with_settings`; they count for who opens it first. It closes with the last
    one that holds it.
    """
    name = (model, str(pathlib.Path(folder).expanduser().resolve()))
    with _LOCK:
        there = _OPEN.get(name)
        if there is None or _is_closed(there):
            network, tokenizer = load(model)
            there = _OPEN[name] = MemoryModel(network, tokenizer, folder, configured(network, settings))
        return there


def _is_closed(mm: MemoryModel) -> bool:
    try:
        mm.memory.stats()
    except ClosedError:
        return True
    return False
