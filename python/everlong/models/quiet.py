"""Loads models without the progress bars of transformers."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def without_bars(*, unless_terminal: bool = False) -> Iterator[None]:
    """Context manager: no progress bars. Warnings, and what a model's own code prints, come through."""
    if unless_terminal and sys.stderr.isatty():
        yield
        return
    bars: Any = importlib.import_module("transformers.utils.logging")
    gguf: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")  # its bar heeds no setting
    drawn, own = bars.is_progress_bar_enabled(), gguf.tqdm
    bars.disable_progress_bar()
    gguf.tqdm = bars.tqdm
    try:
        yield
    finally:
        gguf.tqdm = own
        if drawn:
            bars.enable_progress_bar()
