"""Text as it is given to be read: a str, an opened file, or pieces of one text."""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from everlong.memory.origins import origin_of

_EXPECTED = "expected str, the pathlib.Path of a file, a file opened as text, or several str that are one text"


def pieces_of(text: str | TextIO | Iterable[str]) -> tuple[Iterable[str], str, str]:
    """Return text as pieces, one after the other, with the name and path of its file; "" where there is no file.

    TypeError for what is no text. UserWarning for a str that is a file's name: its few letters are the text, not what
    the file holds.
    """
    if isinstance(text, str):
        if os.path.isfile(text):
            warnings.warn(
                f"the text is {text!r}, which names a file: give pathlib.Path({text!r}) to read the file",
                stacklevel=5,
            )
        return [text], "", ""
    try:
        if hasattr(text, "read"):  # temporary files are file objects by that alone
            name = getattr(text, "name", "")
            return [_read(text)], name_of(name), path_of(name)
    except UnicodeDecodeError as error:
        raise ValueError(f"{text} is not UTF-8: {error.reason} at byte {error.start:,}") from error
    if not isinstance(text, Iterable) or isinstance(text, bytes | bytearray | memoryview | Mapping | set | frozenset):
        raise TypeError(f"the text is {_named(text)}, {_EXPECTED}{_hint(text)}")
    if isinstance(text, list | tuple):
        for number, piece in enumerate(text):
            require_piece(piece, number)
    return text, "", ""


def require_piece(piece: object, number: int) -> None:
    """Raise TypeError where a piece of a text is no str."""
    if not isinstance(piece, str):
        raise TypeError(f"the text is {_named(piece)}, expected str, in its piece {number}{_hint(piece)}")


def _read(file: Any) -> str:
    """Return what a file object has. TypeError where it was opened in binary mode."""
    found = file.read()
    if not isinstance(found, str):
        raise TypeError(
            f"the text is {type(found).__name__}, expected str: the file was opened in binary mode; open it as text, "
            'with encoding="utf-8"'
        )
    return found


def _named(value: object) -> str:
    """Return what was given, in a few words."""
    if value is None:
        return "None"
    said = repr(value)
    return f"{said} ({type(value).__name__})" if isinstance(value, int | float) else type(value).__name__


def _hint(value: object) -> str:
    """Return what to do with what was given, where that is plain."""
    if isinstance(value, bytes | bytearray | memoryview):
        return ': decode it, as bytes(text).decode("utf-8") does'
    if isinstance(value, Mapping):
        return ": its keys would be read; give the text that it holds"
    if isinstance(value, os.PathLike):
        return ": each file is a text of its own, read by its own call"
    if isinstance(value, set | frozenset):
        return ": a set has no order; a list has one"
    return ""


def path_of(file: Any) -> str:
    """Return a file's path from the root; "" where there is no such file, as for a stream with a name."""
    if not isinstance(file, str | bytes | os.PathLike) or not os.path.isfile(file):
        return ""
    return origin_of(pathlib.Path(os.fsdecode(file))).encode("utf-8", "replace").decode()


def name_of(file: Any, *, ending: bool = False) -> str:
    """Return a file's name, without its ending; "" where it has only a number. Bytes that are not UTF-8 show as "?"."""
    if not isinstance(file, str | bytes | os.PathLike):
        return ""
    path = pathlib.Path(os.fsdecode(file))
    return (path.name if ending else path.stem).encode("utf-8", "replace").decode()
