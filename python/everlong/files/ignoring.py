"""Patterns of files as in a .gitignore, matched in time that no pattern can drive up.

A pattern comes from a folder that somebody else may have filled. So a `*` is matched once, at the first place that
fits, and never tried again: for patterns of this kind that finds every match.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

MOST_PATTERNS = 2000  # with wildcards: each is asked about each file
_MANY = re.compile(r"\*\*+")  # a part that stands for any number of them
_MANY_FIRST = re.compile(r"\*\*+(?:\\?/|$)")
_ANYTHING, _NOTHING = re.compile(".*", re.DOTALL), re.compile("(?!)")
_CLASSES = {
    **{"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "space": r" \t\n\r"},
    **{"xdigit": "0-9a-fA-F", "punct": r"!-/:-@\[-`{-~", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f"},
    **{"print": r"\x20-\x7e", "graph": r"\x21-\x7e"},
}
Decided = tuple[int, bool | None]
UNDECIDED: Final[Decided] = (-1, None)
_LONGEST = 4096  # characters, as of a path
_WILD = re.compile(r"[*?\[\\]")


class Patterns:
    """The lines of one .gitignore, or those that a user gives. Of several that name a path, the last one decides."""

    def __init__(self, lines: Iterable[str], *, most: int = MOST_PATTERNS) -> None:
        """`refused` are lines that cannot be read, and those behind `most` patterns with wildcards."""
        self._plain: dict[tuple[str, bool], list[tuple[int, bool, bool]]] = {}  # number, of folders alone, names
        self._wild: list[tuple[int, bool, bool, Callable[[Sequence[str]], bool]]] = []
        self.refused: list[str] = []
        for number, line in enumerate(lines):
            self._add(number, line, most)

    @property
    def wild(self) -> int:
        """The number of patterns with wildcards."""
        return len(self._wild)

    def names(self, path: str, *, folder: bool) -> bool | None:
        """Return whether a path is named, or named behind a !; None where no pattern is about it.

        What stands above a path is not asked about: who walks through folders does not come below one that is named.
        """
        return self.decided(path, folder=folder)[1]

    def decided(self, path: str, *, folder: bool) -> Decided:
        """Return the number of the line that decides, and what `names` does."""
        path = _bytes_of(path)
        parts = path.split("/")
        last = UNDECIDED
        for key in ((parts[-1], False), (path, True)):
            for number, folders, named in self._plain.get(key, ()):
                if number > last[0] and (folder or not folders):
                    last = (number, named)
        for number, folders, named, fits in reversed(self._wild):
            if number < last[0]:
                break
            if (folder or not folders) and fits(parts):
                return number, named
        return last

    def _add(self, number: int, line: str, most: int) -> None:
        text = _without_trailing_spaces(line.rstrip("\r\n"))
        if not text or text.startswith("#"):
            return
        named = not text.startswith("!")
        try:
            text = _bytes_of(text if named else text[1:])
        except ValueError:  # a user's, which no name can have
            self.refused.append(line)
            return
        folders = text.endswith("/")
        text = text.removesuffix("/")
        anchored = "/" in text
        text = text.removeprefix("/")
        if not _WILD.search(text):
            if text:
                self._plain.setdefault((text, anchored), []).append((number, folders, named))
            return
        try:
            if len(text) > _LONGEST or len(self._wild) >= most:
                raise ValueError("too long, or one too many")
            self._wild.append((number, folders, named, _matcher(text) if anchored else _name_matcher(text)))
        except ValueError:
            self.refused.append(line)


def _bytes_of(text: str) -> str:
    """Return a letter for each byte, as git compares names: of other letters than ASCII a ? takes one byte."""
    return text if text.isascii() else os.fsencode(text).decode("latin-1")


def _without_trailing_spaces(line: str) -> str:
    """A space at the end counts behind a backslash alone."""
    kept = line.rstrip(" ")
    escaped = (len(kept) - len(kept.rstrip("\\"))) % 2 == 1
    return kept + " " if escaped and len(kept) < len(line) else kept


def _name_matcher(pattern: str) -> Callable[[Sequence[str]], bool]:
    """Return what tells whether the last part of a path matches, wherever it is. ValueError as below."""
    fits = re.compile(".*" if _MANY.fullmatch(pattern) else _regex(pattern), re.DOTALL).fullmatch
    return lambda parts: fits(parts[-1]) is not None


def _matcher(pattern: str) -> Callable[[Sequence[str]], bool]:
    """Return what tells whether the parts of a path match. ValueError for a pattern that no name can match."""
    wild = _WILD.search(pattern)
    literal = pattern[: wild.start()] if wild is not None else ""
    if literal and not literal.endswith("/") and _MANY_FIRST.match(pattern, len(literal)):
        return functools.partial(_fits_behind, literal, _matcher(pattern[len(literal) :]))
    wanted: list[re.Pattern[str] | None] = []  # None stands for any number of parts
    for part in _parts(pattern):
        if not _MANY.fullmatch(part):
            wanted.append(re.compile(_regex(part), re.DOTALL))
        elif not wanted or wanted[-1] is not None:
            wanted.append(None)
    if wanted[-1] is None:  # all that lies below, but not the folder itself
        wanted.insert(-1, _ANYTHING)
    return functools.partial(_fits, tuple(wanted))


def _fits_behind(literal: str, fits: Callable[[Sequence[str]], bool], parts: Sequence[str]) -> bool:
    """Match what stands behind letters. Git compares these first: so a ** right behind them stands for folders, too."""
    path = "/".join(parts)
    return path.startswith(literal) and fits(path[len(literal) :].split("/"))


def _parts(pattern: str) -> list[str]:
    """Split a pattern at slashes, but for those in brackets. A backslash before a slash means the slash."""
    parts, begin, at = [], 0, 0
    while at < len(pattern):
        if pattern.startswith("\\/", at) or pattern[at] == "/":
            parts.append(pattern[begin:at])
            at = begin = at + 1 + (pattern[at] == "\\")
        elif pattern[at] == "[":
            _, at = _bracket(pattern, at + 1)
        else:
            at += 2 if pattern[at] == "\\" else 1
    return [*parts, pattern[begin:]]


def _fits(wanted: Sequence[re.Pattern[str] | None], parts: Sequence[str]) -> bool:
    """Match part by part. Behind a mismatch the last ** takes one part more: earlier ones need not be tried again."""
    at = part = 0
    again: tuple[int, int] | None = None
    while part < len(parts):
        one = wanted[at] if at < len(wanted) else _NOTHING
        if one is None:
            at += 1
            again = (at, part)
        elif one.fullmatch(parts[part]):
            at, part = at + 1, part + 1
        elif again is None:
            return False
        else:
            at, part = again[0], again[1] + 1
            again = (at, part)
    return all(one is None for one in wanted[at:])


def _regex(part: str) -> str:
    """Return one part of a pattern as a regular expression, which goes back over no * but the last one."""
    pieces = [""]
    at = 0
    while at < len(part):
        letter = part[at]
        at += 1
        if letter == "*":
            if pieces[-1] or len(pieces) == 1:
                pieces.append("")
        elif letter == "?":
            pieces[-1] += "."
        elif letter == "[":
            found, at = _bracket(part, at)
            pieces[-1] += found
        else:
            if letter == "\\":
                if at == len(part):
                    raise ValueError("a backslash at the end")
                letter, at = part[at], at + 1
            pieces[-1] += re.escape(letter)
    first, *others = pieces
    if not others:
        return first
    return first + "".join(f"(?>.*?{one})" for one in others[:-1]) + ".*" + others[-1]


def _bracket(part: str, at: int) -> tuple[str, int]:
    """Return a bracket as a regular expression, and where it ends. ValueError where it does not end."""
    negated = part[at : at + 1] in ("!", "^")
    at += negated
    said, first = "", True
    while first or part[at : at + 1] != "]":
        if at >= len(part):
            raise ValueError("a bracket without an end")
        first = False
        if part.startswith("[:", at):
            name, end, _ = part[at + 2 :].partition(":]")
            if not end or name not in _CLASSES:
                raise ValueError("no such class of letters")
            said += _CLASSES[name]
            at += len(name) + 4
            continue
        low, at = _letter(part, at)
        said += re.escape(low)
        if part[at : at + 1] == "-" and part[at + 1 : at + 2] not in ("", "]"):
            high, at = _letter(part, at + 1)
            if low <= high:
                said += f"{re.escape(low)}-{re.escape(high)}"
    return f"[{'^' if negated else ''}{said}]", at + 1


def _letter(part: str, at: int) -> tuple[str, int]:
    if part[at] == "\\":
        at += 1
    if at >= len(part):
        raise ValueError("a bracket without an end")
    return part[at], at + 1
