"""The list of all parts: everlong's own, a folder each, and those that other packages name as entry points.

An entry point of the group `everlong.parts` names a part's settings class: `surprise = "my_package:Surprise"`. A part
whose package cannot be imported is left out, and nothing else changes. Training and measuring of everlong's own parts
are in the distribution everlong-lab.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from everlong import plugins

GROUP = "everlong.parts"

# The folder of each part in everlong.parts, and its settings class, in the order in which they are trained.
_OWN = {
    "towers": "Towers",
    "encoder": "Encoder",
    "trigger": "Trigger",
    "trimmer": "Trimmer",
    "writer": "Writer",
    "kv_writer": "KvWriter",
    "tombstones": "Tombstones",
    "walker": "Walker",
    "adapter": "Adapter",
    "retrieve": "Retrieve",
}
# At work in every memory: the encoder, and what the model's pack has of the others. Towers stand behind the encoder:
# where there are both, sentences are compared by the towers' vectors.
_DEFAULT = ("encoder", "towers", "kv_writer", "adapter")


def names() -> tuple[str, ...]:
    """Return the names of all installed parts, everlong's own first. Nothing of them is imported."""
    return tuple(name for name in (*_OWN, *_points()) if is_installed(name))


def part(name: str) -> Any:
    """Return a part with the defaults of its settings. ValueError where there is no such part."""
    found = _loaded(name)
    if found is None:
        raise ValueError(f"there is no part {name!r}: there are {', '.join(names())}")
    return found()


def default_parts() -> tuple[Any, ...]:
    """Return the parts of `MemoryConfig()`."""
    return tuple(kind() for kind in map(_loaded, _DEFAULT) if kind is not None)


def _loaded(name: str) -> Any:
    """Return the settings class of a part; None where it cannot be imported."""
    try:
        if name not in _OWN:
            return next(plugins.load(GROUP, name), None)
        return getattr(importlib.import_module(package_of(name)), _OWN[name], None)
    except ImportError:
        return None


def is_installed(name: str) -> bool:
    """Return whether a part is installed. Nothing of it is imported."""
    return (name in _OWN or name in _points()) and plugins.spec_of(package_of(name)) is not None


def package_of(name: str) -> str:
    """Return the package of a part. ImportError where none names it."""
    if name in _OWN:
        return f"everlong.parts.{name}"
    if name not in _points():
        raise ImportError(name)
    return _points()[name].module


def _points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP) if point.name not in _OWN}
