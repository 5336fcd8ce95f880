"""Settings as they are typed: those of a memory, and lengths."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def memory_settings(values: Iterable[str]) -> list[str]:
    """Return `group.name=value` settings for `MemoryConfig.with_settings`.

    They come from such texts, and from .json and .toml files nested by group.
    """
    settings: list[str] = []
    for text in values:
        path = pathlib.Path(text)
        if "=" not in text and path.suffix in (".json", ".toml"):
            settings += _by_group(_load(path.expanduser()))
        else:
            settings.append(text)
    return settings


def parse_lengths(text: str) -> tuple[int, ...]:
    """Return lengths such as "4K,32K,1M" in tokens, ascending."""
    return tuple(sorted({parse_length(word) for word in text.split(",")}))


def parse_length(word: str) -> int:
    """Return a length such as "32K" in tokens; K is 1,024 and M 1,048,576."""
    match = re.fullmatch(r"(\d+)([KM]?)", word.strip().upper())
    if match is None:
        raise ValueError(f"length {word!r}: expected tokens such as 32768, 32K or 1M")
    return int(match[1]) * _UNITS[match[2]]


def _by_group(settings: dict[str, Any]) -> Iterator[str]:
    """Yield each setting as `group.name=value`; the names of parts alone have no group."""
    for group, values in settings.items():
        if isinstance(values, dict):
            yield from (f"{group}.{name}={_typed(value)}" for name, value in values.items())
        else:
            yield f"{group}={_typed(values)}"


def _load(path: pathlib.Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".toml":
            import tomllib

            return tomllib.loads(text)
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected an object of settings")
    return values


def _typed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
