"""Draws that leave no trace: a caller's seed gives the same answers whatever everlong did before."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def isolated_rng(seed: int | None = None) -> Iterator[None]:
    """Put the global generators of Python, numpy and torch back at the end, where new layers and others draw from them.

    With `seed`, torch's for the CPU begins there. It is a decorator, too. Not for two threads at once.
    """
    python, arrays = random.getstate(), np.random.get_state()
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch has no types for it
    devices = list(range(torch.cuda.device_count())) if initialized else []
    try:
        with torch.random.fork_rng(devices=devices):
            if seed is not None:
                torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed other devices for good
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
