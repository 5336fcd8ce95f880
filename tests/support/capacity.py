"""What a memory of the tiny model takes, and a disk and RAM of any size."""

from __future__ import annotations

import math
import shutil

import pytest

from everlong.frame import capacity
from support import tiny_model

MODEL = tiny_model()

MB = 1_000_000


def payload(tokens: int) -> int:
    """As e4m3: a byte a number, four for each token's values and six for each channel of a page's keys."""
    layers, kv_heads, head_dim, pages = 3, 2, 16, math.ceil(tokens / 64)
    return layers * kv_heads * (2 * head_dim * tokens + 6 * pages * head_dim + 4 * tokens)


def disk_of(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(capacity.shutil, "disk_usage", lambda path: usage._replace(free=free))  # type: ignore[attr-defined]  # what it imports


def ram_of(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(capacity._core, "free_memory_bytes", lambda: free)  # type: ignore[attr-defined]  # what it imports
