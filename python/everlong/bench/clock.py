"""What time it is once a device has done all that it was given."""

from __future__ import annotations

import time

import torch


def now(device: torch.device) -> float:
    """Seconds; a GPU is waited for, since its kernels run on after the call that started them."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
