"""Copies of a tensor that share RAM until they are written to, page by page of 4 KB, as processes do after a fork."""

from __future__ import annotations

import os

import torch


def copy_on_write(x: torch.Tensor, used: slice, count: int) -> list[torch.Tensor]:
    """Return `count` copies of x along the last dimension but one: `used` of it, and zeros around.

    On a CPU they take the RAM of one, and what is written to each. `x` itself may change. A GPU has no such memory:
    there each is a whole copy.
    """
    if x.device.type != "cpu":
        copies = [torch.zeros_like(x) for _ in range(count)]
        for copy in copies:
            copy[..., used, :] = x[..., used, :]
        return copies
    descriptor = os.memfd_create("everlong-frame", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, x.numel() * x.element_size())
        _mapped(descriptor, x, shared=True)[..., used, :] = x[..., used, :]
        return [_mapped(descriptor, x, shared=False) for _ in range(count)]
    finally:
        os.close(descriptor)  # it lives on while it is mapped


def _mapped(descriptor: int, like: torch.Tensor, *, shared: bool) -> torch.Tensor:
    """Map a file as a tensor. What is written to one that is not shared stays its own."""
    path = f"/proc/self/fd/{descriptor}"
    return torch.from_file(path, shared=shared, size=like.numel(), dtype=like.dtype).view(like.shape)
