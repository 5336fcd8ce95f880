"""The time once a device has done all its work."""

from __future__ import annotations

import time

import torch


def now(device: torch.device) -> float:
    """Return seconds. It waits for a GPU, whose kernels run on after the call that started them."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
