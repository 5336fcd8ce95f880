"""A group of settings: a frozen dataclass. It says what is wrong with a value, and where another setting lives.

Groups are `MemoryConfig`'s (frame, archive, search, answer) and those of parts. They are written in Python, or as text:
`search.groups=2`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, Self

_MOST_COUNT, _MOST_BYTES = (1 << 31) - 1, (1 << 63) - 1  # as the core counts them
_GROUPS: dict[str, type[Settings]] = {}


class Settings:
    """Base of a frozen dataclass of settings: `class Mine(Settings, group="mine", least={"tokens": 1})`."""

    group: ClassVar[str]
    least: ClassVar[Mapping[str, float]] = {}  # the smallest values of numbers

    def __init_subclass__(cls, group: str = "", least: Mapping[str, float] = {}) -> None:
        super().__init_subclass__()
        if group:
            cls.group, cls.least = group, least
            _GROUPS[group] = cls

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        """Raise TypeError for a setting that is not of this group. It says which group has it."""
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]  # the subclasses are some
        for name in settings:
            if name not in names:
                raise TypeError(f"{cls.__name__} has no setting {name!r}{_hint(name, names)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Raise ValueError for a value that a setting cannot have."""
        for name, kind in types_of(type(self)).items():
            value = getattr(self, name)
            if choices := _choices(kind):
                for one in value if isinstance(value, tuple) else (value,):
                    if one not in choices:
                        raise ValueError(f"{name} is {one!r}, expected one of {', '.join(map(str, choices))}")
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                continue
            if not math.isfinite(value):
                raise ValueError(f"{name} is {value}, expected a number")
            if value < self.least.get(name, -math.inf):
                raise ValueError(f"{name} is {value}, expected at least {self.least[name]}")
            most = _MOST_BYTES if name.endswith("bytes") else _MOST_COUNT
            if isinstance(value, int) and value > most:
                raise ValueError(f"{name} is {value}, expected at most {most:,}")

    @classmethod
    def between_questions(cls) -> frozenset[str]:
        """Return the settings that may change from one question to the next."""
        return frozenset()

    def with_text(self, name: str, value: str) -> Self:
        """Return this group with a setting as typed: "2", "true", "heads,lexical", "none". ValueError for others."""
        kinds = types_of(type(self))
        if name not in kinds:
            raise ValueError(f"{self.group} has no setting {name!r}{_hint(name, kinds)}")
        return dataclasses.replace(self, **{name: _parsed(f"{self.group}.{name}={value}", value, kinds[name])})  # type: ignore[type-var]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]


def where_is(name: str) -> str:
    """Return the group that has a setting of this name, as `search.groups`; empty where none has."""
    for group, kind in _GROUPS.items():
        for own in types_of(kind):
            if name in (own, f"{group}_{own}"):
                return f"{group}.{own}"
    return ""


def types_of(kind: type[Any]) -> dict[str, Any]:
    """Return the types of a dataclass's fields, by name."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def require_choice(name: str, value: Any, choices: Any) -> None:
    """Raise ValueError, which lists the choices, unless `value` is one of the Literal type `choices`."""
    there = typing.get_args(choices)
    if value not in there:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(str, there))}")


def _hint(name: str, names: Iterable[str]) -> str:
    if place := where_is(name):
        return f": it is {place}"
    near = difflib.get_close_matches(name, names, 1)
    return f": is it {near[0]!r}?" if near else f": there are {', '.join(names)}"


def _choices(kind: Any) -> tuple[Any, ...]:
    """Return the choices of a Literal, of a tuple of it, or of either; with None, where that is allowed."""
    if typing.get_origin(kind) is Literal:
        return typing.get_args(kind)
    found: list[Any] = []
    for one in typing.get_args(kind):
        if one is type(None):
            found.append(None)
        elif one is not Ellipsis:
            own = _choices(one)
            if not own:
                return ()
            found += own
    return tuple(dict.fromkeys(found))


def _parsed(setting: str, value: str, kind: Any) -> Any:
    """Return a setting's value in the type of its field: text, number, yes or no, choices, or None where it may be."""
    origin, choices = typing.get_origin(kind), typing.get_args(kind)
    if kind is str:
        return value
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise ValueError(f"{setting!r}: expected true or false")
        return value.lower() == "true"
    if kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"{setting!r}: expected {'a whole number' if kind is int else 'a number'}") from None
    if origin is Literal:
        named = {str(choice): choice for choice in choices}
        if value not in named:
            raise ValueError(f"{setting!r}: expected one of {', '.join(named)}")
        return named[value]
    if origin is tuple:
        return tuple(_parsed(setting, part, choices[0]) for part in value.split(",") if part)
    if type(None) in choices and value.lower() == "none":
        return None
    single = [choice for choice in choices if typing.get_origin(choice) is not tuple and choice is not type(None)]
    several = [choice for choice in choices if typing.get_origin(choice) is tuple]
    return _parsed(setting, value, several[0] if several and "," in value else single[0])
