"""Where a path leads: asked by all that is told a file or a folder."""

from __future__ import annotations

import os
import pathlib


def from_home(path: str | bytes | os.PathLike[str]) -> pathlib.Path:
    """Return a path with the user's home in place of a leading ~. Bytes that are no UTF-8 stay what they are.

    TypeError for what is no path. ValueError for one that no system can have, and where there is no such home.
    """
    try:
        given = os.fsdecode(path)
    except TypeError:
        raise TypeError(f"the path is {path!r} ({type(path).__name__}): expected a str or a pathlib.Path") from None
    if not given.strip():
        raise ValueError(f"the path {given!r} is empty: expected a folder's or file's name, or None for RAM alone")
    if "\0" in given:
        raise ValueError(f"the path {given!r} has a zero byte, which no path may have")
    expanded = os.path.expanduser(given)
    if given.startswith("~") and expanded == given and not os.path.lexists(given):
        raise ValueError(f"{given!r}: there is no such home folder; './{given}' is a name in the current folder")
    return pathlib.Path(expanded)


def absolute(path: str | bytes | os.PathLike[str]) -> str:
    """Return a path from the root of the file system, which stays true when the current folder changes.

    Links are not followed. Errors as of `from_home`.
    """
    return os.fspath(from_home(path).absolute())
