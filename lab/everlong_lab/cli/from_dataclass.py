"""Options of a command from a dataclass: a field's name, type, default and comment.

A field without a default is an argument. Fields are of int, float, bool, str, Path, a Literal of words, or tuples of
these; each may be None. Several paths are given one after the other, several numbers or words by commas; "none" is no
number and no word.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import pathlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from everlong.cli.app import Application
from everlong.cli.options import parameter, with_parameters
from everlong.cli.settings import parse_length
from everlong_lab.cli.field_comments import comments_of

_NONE = ("", "none")


@dataclasses.dataclass(frozen=True)
class _Typed:
    """How a field is typed: its kind for typer, and how what was typed becomes its value."""

    kind: Any
    default: Any
    value: Callable[[Any], Any] = lambda value: value


def parameters_of(settings: type) -> list[inspect.Parameter]:
    """Return the parameters for `command_of`: a class's own fields before those that it inherits.

    Raises TypeError for a field of a type that no option has.
    """
    said, hints = comments_of(settings), typing.get_type_hints(settings)
    own = list(inspect.get_annotations(settings))
    fields = sorted(dataclasses.fields(settings), key=lambda field: own.index(field.name) if field.name in own else 99)
    return [_parameter(field, hints[field.name], said[field.name]) for field in fields]


def settings_of(settings: type, options: Mapping[str, Any]) -> Any:
    """Return the dataclass with what was typed. Raises ValueError where that is wrong."""
    hints = typing.get_type_hints(settings)
    fields = dataclasses.fields(settings)
    return settings(**{field.name: _typed(field, hints[field.name]).value(options[field.name]) for field in fields})


def command_of(function: Callable[..., None], parameters: Sequence[inspect.Parameter], help: str) -> Any:
    """Return the command that calls `function` with what was given for each parameter, by name."""
    app = Application(add_completion=False)
    app.command(help=help)(with_parameters(function, parameters))
    return typer.main.get_command(app)


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parameter(field: dataclasses.Field[Any], hint: Any, help_text: str) -> inspect.Parameter:
    typed = _typed(field, hint)
    text = help_text if help_text.endswith((".", "?", "!")) or not help_text else f"{help_text}."
    if field.default is dataclasses.MISSING:
        return parameter(field.name, Annotated[typed.kind, typer.Argument(help=text)])
    flag = flag_of(field.name)
    name = f"{flag}/--no-{flag[2:]}" if typed.kind is bool else flag
    return parameter(field.name, Annotated[typed.kind, typer.Option(name, help=text)], typed.default)


def _typed(field: dataclasses.Field[Any], hint: Any) -> _Typed:
    default: Any = None if field.default is dataclasses.MISSING else field.default
    kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
    if typing.get_origin(hint) in (typing.Union, types.UnionType) and len(kinds) == 1:
        inner = _typed(field, kinds[0])
        if default is None:
            # What is not given is None; what is given becomes what it would be without None.
            return _Typed(inner.kind | None, None, lambda value: None if value is None else inner.value(value))
        return inner
    if typing.get_origin(hint) is tuple:
        if kinds[0] is pathlib.Path:
            files = list(default or ()) or None
            return _Typed(list[pathlib.Path] | None, files, lambda value: tuple(value or ()))
        text = None if default is None else ",".join(map(str, default))
        return _Typed(str, text, lambda value: _by_commas(flag_of(field.name), kinds, value))
    if typing.get_origin(hint) is typing.Literal:
        words = enum.Enum(field.name, {word: word for word in typing.get_args(hint)})  # type: ignore[misc]
        return _Typed(words, None if default is None else words(default), lambda value: value.value)
    if hint in (int, float, bool, str, pathlib.Path):
        return _Typed(hint, default)
    raise TypeError(f"no option has the type of {field.name}, {hint}")


def _by_commas(flag: str, kinds: list[Any], text: str) -> tuple[Any, ...]:
    words = [] if text.strip() in _NONE else [word.strip() for word in text.split(",") if word.strip()]
    parse = {int: parse_length}.get(kinds[0], kinds[0])
    if kinds[-1] is not Ellipsis and len(words) != len(kinds):
        raise ValueError(f"{flag} is {text!r}, expected {len(kinds)} by commas")
    try:
        return tuple(parse(word) for word in words)
    except ValueError as error:
        raise ValueError(f"{flag} is {text!r}: {error}") from None
