"""Whether something draws from the generators that a caller seeds."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def no_global_draws() -> Iterator[None]:
    """Assert that the global generators of Python, numpy and torch are as they were, and were seeded by nobody."""
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    random.random(), np.random.rand(), torch.rand(1)
    before = _states()
    yield
    assert _states() == before


def _states() -> tuple[object, ...]:
    arrays = np.random.get_state(legacy=False)
    return random.getstate(), str(arrays), torch.get_rng_state().numpy().tobytes()
