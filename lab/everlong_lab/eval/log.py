"""Where an evaluation says what it is doing, a line at a time."""

from __future__ import annotations

from collections.abc import Callable

Log = Callable[[str], None]


def silent(line: str) -> None:
    """Drop the line."""
