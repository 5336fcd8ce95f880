"""What a model's attention sees: the values that it reads, as rows of bytes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch


@dataclasses.dataclass
class SeenValues:
    """Rows of values of all attention layers, of their first head: those that were attended to, and the newest ones."""

    attended: set[bytes] = dataclasses.field(default_factory=set)
    written: set[bytes] = dataclasses.field(default_factory=set)  # of the tokens that were computed


@contextlib.contextmanager
def seen_values() -> Iterator[SeenValues]:
    """Record what `scaled_dot_product_attention` reads, for models whose attention is "sdpa"."""
    seen, own = SeenValues(), torch.nn.functional.scaled_dot_product_attention

    def spy(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        mask = kwargs.get("attn_mask", args[0] if args else None)
        rows = value[0, 0]
        there = torch.ones(len(rows), dtype=torch.bool)
        if mask is not None:
            shown = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] > -1e4
            there = shown.any(dim=0)
        seen.attended.update(row.numpy().tobytes() for row in rows[there])
        seen.written.update(row.numpy().tobytes() for row in rows[-query.shape[-2] :])
        return own(query, key, value, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
        yield seen
