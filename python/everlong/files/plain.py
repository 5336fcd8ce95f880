"""Plain text, Markdown and code: they are their own text, and places are found in it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from everlong.files import encoding
from everlong.files.dates import seconds_of
from everlong.files.document import Budget, Document, NoTextError, Section, line_of
from everlong.files.kind import CONTAINERS

_LINES = 20  # of code that one place names
_MARKDOWN = ("md", "markdown", "mdown", "mkd")
_SOME_LINES = re.compile(rf"(?:[^\n]*+\n|[^\n]++\Z){{1,{_LINES}}}")
_HEADING_OR_FENCE = re.compile(r"^ {0,3}(?:(#{1,6}[ \t])|```|~~~)", re.MULTILINE)
_LONGEST_HEADING = 1000  # characters that are looked at
_LONGEST_FRONT = 1 << 16
_FRONT = re.compile(r"\A---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*\n", re.DOTALL)
_PROSE = ("", "txt", "text", "log", "rst", "tex", "json", "jsonl", "xml", "csv", "tsv", *_MARKDOWN, *CONTAINERS)


def read(data: bytes, suffix: str) -> Iterator[Document]:
    """Yield the one document that a text is."""
    text, details = decoded_with_details(data)
    yield dataclasses.replace(of_text(text, suffix), details=details)


def of_text(text: str, suffix: str) -> Document:
    """Return text as it is, cut into sections by its headings, or by its lines where it is code.

    NoTextError for what is no text, though it can be decoded.
    """
    if "\0" in text and suffix not in ("txt", ""):
        raise NoTextError("holds no text: it has zero bytes")
    if suffix in _MARKDOWN:
        front = _front_matter(text)
        return Document(
            tuple(Budget().joined(_by_headings(text))),
            title=front.get("title", ""),
            author=front.get("author", ""),
            happened=seconds_of(front.get("date")),
        )
    return Document((Section("", text),) if suffix in _PROSE else tuple(Budget().joined(_by_lines(text))))


def decoded(data: bytes, stated: str = "", *, guess: bool = True) -> str:
    """Return bytes as text, as `decoded_with_details` does."""
    return decoded_with_details(data, stated, guess=guess)[0]


def decoded_with_details(data: bytes, stated: str = "", *, guess: bool = True) -> tuple[str, tuple[str, ...]]:
    """Return bytes as text: by what they begin with, what is stated of them, UTF-8, or what their letters tell. And
    return what of that is not certain, for the details of a document.

    Raises NoTextError for what is no text. Without `guess` raises UnicodeDecodeError where the encoding would be
    guessed, which takes time and RAM.
    """
    found = encoding.decoded(data, stated, guess=guess)
    return _lines(found.text), (found.guess,) if found.guess else ()


def _lines(text: str) -> str:
    """Python's own text mode gives every end of line as one."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _by_headings(text: str) -> Iterator[Section]:
    place, begin, fenced = "", 0, False
    for found in _HEADING_OR_FENCE.finditer(text):
        if found[1] is None:
            fenced = not fenced
        elif not fenced:
            if begin < found.start():
                yield Section(place, text[begin : found.start()])
            begin = found.start()
            end = text.find("\n", begin, begin + _LONGEST_HEADING)
            place = line_of(text[begin : end if end >= 0 else begin + _LONGEST_HEADING].strip(" \t#"))
    if begin < len(text):
        yield Section(place, text[begin:])


def _by_lines(text: str) -> Iterator[Section]:
    first = 1
    for found in _SOME_LINES.finditer(text):
        some = found[0]
        lines = some.count("\n") + (not some.endswith("\n"))
        yield Section(f"lines {first}-{first + lines - 1}", some)
        first += lines


def _front_matter(text: str) -> dict[str, str]:
    """Return the plain values of the lines between --- that a note may begin with."""
    found = _FRONT.match(text[:_LONGEST_FRONT])
    pairs = (line.partition(":") for line in found[1].splitlines()) if found else ()
    return {name.strip().lower(): line_of(value.strip(" \t\"'")) for name, colon, value in pairs if colon}
