"""What other packages add to everlong, by entry points: commands, pictures."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import Any


def load(group: str) -> Iterator[Any]:
    """Yield what the entry points of a group name. One that cannot be imported is left out, with a warning."""
    for point in metadata.entry_points(group=group):
        try:
            loaded = point.load()
        except Exception as error:
            warnings.warn(f"{point.value}, an entry point of {group}, is left out: {error}", stacklevel=2)
            continue
        yield loaded
