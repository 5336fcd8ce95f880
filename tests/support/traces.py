"""Reading a trace of the Memory OS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def blocks_of(restore: Mapping[str, Any]) -> list[int]:
    """Return the blocks that a restore brought pages of, in frame order."""
    return list(dict.fromkeys(run["block"] for run in restore["restored"]))
