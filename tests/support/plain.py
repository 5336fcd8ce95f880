"""The reference: logits of plain transformers, and those of a memory's frame to compare with them."""

from __future__ import annotations

from typing import Any

import torch

from everlong import MemoryModel

# What two ways to compute the same fp32 logits may differ by.
TOLERANCE = 1e-4


def plain_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits [n, V] of one plain forward over ids [n]."""
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids[None]).logits[0]
    return logits


def next_logits(mm: MemoryModel, text: str) -> torch.Tensor:
    """Return the logits [n, V] of `text` as a prompt, in a branch: the frame stays as it is."""
    with mm.frame.branch():
        logits: torch.Tensor = mm.frame.extend(mm.encode(text), "prompt", logits=True)
    return logits
