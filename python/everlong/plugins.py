"""What other packages add to everlong, by entry points: commands, pictures, packs, parts.

A package that is broken is left out, and nothing else changes.
"""

from __future__ import annotations

import importlib.util
import pathlib
import warnings
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import ModuleSpec
from typing import Any


def load(group: str, name: str | None = None) -> Iterator[Any]:
    """Yield what the entry points of a group name, or the one of that name. What cannot be loaded is warned of."""
    for point in metadata.entry_points(group=group):
        if name not in (None, point.name):
            continue
        try:
            loaded = point.load()
        except Exception as error:
            warnings.warn(f"{point.value}, an entry point of {group}, is left out: {error}", stacklevel=2)
            continue
        yield loaded


def spec_of(module: str) -> ModuleSpec | None:
    """Return where a module is; None where it cannot be found. Its packages are imported, and it is not."""
    try:
        return importlib.util.find_spec(module)
    except Exception:  # whatever the packages do
        return None


def folders_of(package: str) -> list[pathlib.Path]:
    """Return the folders of a package; none where it cannot be found."""
    spec = spec_of(package)
    return [] if spec is None else [pathlib.Path(place) for place in spec.submodule_search_locations or ()]
