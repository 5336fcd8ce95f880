"""Random draws of one answer, which do not depend on what else is computed in between."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


class RandomState:
    """The state of torch's random numbers for one answer, on the CPU and on its device."""

    def __init__(self, seed: int | None, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        seed = torch.seed() & 0x7FFF_FFFF_FFFF_FFFF if seed is None else seed
        self._cpu = torch.Generator("cpu").manual_seed(seed).get_state()
        self._gpu = None if self._device is None else torch.Generator(self._device).manual_seed(seed).get_state()

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Wrap a step of the answer: it draws from its own state, and the others' stay as they were."""
        with torch.random.fork_rng([] if self._device is None else [self._device]):
            torch.set_rng_state(self._cpu)
            if self._device is not None and self._gpu is not None:
                torch.cuda.set_rng_state(self._gpu, self._device)
            try:
                yield
            finally:
                self._cpu = torch.get_rng_state()
                if self._device is not None:
                    self._gpu = torch.cuda.get_rng_state(self._device)
