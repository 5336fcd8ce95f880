"""Loads models without the progress bars of transformers."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def without_progress_bars(*, unless_terminal: bool = False) -> Iterator[None]:
    """Context manager: no progress bars. Warnings, and what a model's own code prints, come through."""
    if unless_terminal and sys.stderr.isatty():
        yield
        return
    with _CHANGING:
        _silence()
    try:
        yield
    finally:
        with _CHANGING:
            _undo()


# Bars are one setting for all threads: the first of several loads turns them off, and the last one on again.
_CHANGING = threading.Lock()
_loads: list[Any] = []  # before the first of them: whether bars were drawn, and the bar of GGUF files


def _silence() -> None:
    bars: Any = importlib.import_module("transformers.utils.logging")
    gguf: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")  # its bar heeds no setting
    _loads.append((bars.is_progress_bar_enabled(), gguf.tqdm))
    bars.disable_progress_bar()
    gguf.tqdm = bars.tqdm


def _undo() -> None:
    drawn, own = _loads[0]
    del _loads[-1]
    if _loads:
        return
    importlib.import_module("transformers.modeling_gguf_pytorch_utils").__dict__["tqdm"] = own
    if drawn:
        bars: Any = importlib.import_module("transformers.utils.logging")
        bars.enable_progress_bar()
