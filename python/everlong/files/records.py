"""How the child process tells what it found: lines of JSON, and texts by their number of bytes.

The parent trusts it with nothing. No line is long, no name and no place is, no text is longer than what is left of the
limit, and there are no more parts, names and places than their texts can pay for: so the parent's RAM is bounded by
what the file says, too.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import IO, Any

from everlong.files.document import Document, NoTextError, ParseResult, Section, UnreadableFileError

_LONGEST_LINE = 1 << 14  # bytes
_LONGEST_WORDS = 1000  # characters of a name, or of what is wrong
_MOST_PARTS = 500_000
_MOST_DETAILS = 20  # of a document
_BYTES_A_PART = 32  # that more parts than that must have
_FREE_WORDS = 16 << 20  # bytes of all names, places and titles; more of them must have as many bytes of text
_YEARS = (-62_135_596_800, 253_402_300_800)  # 1 to 9999, in seconds since 1970


class Writer:
    """Tells what is found, as it comes."""

    def __init__(self, to: IO[bytes]) -> None:
        self._to = to

    def document(self, found: Document, sections: Iterable[Section]) -> None:
        """Tell one document. `sections` are those to tell, one after the other."""
        happened = found.happened
        self._line({"document": found.name, "title": found.title, "author": found.author, "happened": happened})
        for detail in found.details[:_MOST_DETAILS]:
            self._line({"detail": detail})
        for section in sections:
            text = section.text.encode("utf-8", "replace")
            self._line({"section": section.place, "bytes": len(text)})
            self._to.write(text)

    def passed_over(self, name: str, why: str) -> None:
        """Tell a part that is passed over."""
        self._line({"passed over": name, "why": _one_line(why)})

    def error(self, why: str, *, no_text: bool = False) -> None:
        """Tell why nothing more comes. `no_text`: because of the file, and not for now alone."""
        self._line({"error": _one_line(why), "no text": no_text})

    def end(self) -> None:
        """Tell that this was all."""
        self._line({"end": True})

    def _line(self, fields: dict[str, Any]) -> None:
        short = {
            name: one[:_LONGEST_WORDS].encode("utf-8", "replace").decode() if isinstance(one, str) else one
            for name, one in fields.items()
        }
        self._to.write(json.dumps(short).encode() + b"\n")


def _one_line(why: str) -> str:
    """A library's own words may have several, and reports have a line for each file."""
    return " ".join(why.split())


def read(stream: IO[bytes], text_bytes: int) -> ParseResult:
    """Return what a child tells.

    Raises UnreadableFileError for its error, for more than it may tell, and for what makes no sense; NoTextError where
    it says that the file has no text.
    """
    try:
        return _read(stream, text_bytes)
    except UnreadableFileError:
        raise
    except json.JSONDecodeError:
        pass  # it was cut short
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UnreadableFileError(f"cannot be read: {error}") from None
    raise UnreadableFileError("takes more time or RAM than a file may, or ends the process that reads it")


def _read(stream: IO[bytes], text_bytes: int) -> ParseResult:
    documents: list[Document] = []
    passed_over: list[tuple[str, str]] = []
    about: Document | None = None
    sections: list[Section] = []
    left, parts, words = text_bytes, 0, 0

    def word(value: object) -> str:
        """Return a name, a place or what is wrong, no longer than the child may tell it."""
        nonlocal words
        if not isinstance(value, str):
            raise ValueError(f"{type(value).__name__} in place of a name")
        short = value[:_LONGEST_WORDS]
        words += len(short.encode())  # which half a surrogate pair refuses
        if words > _FREE_WORDS + text_bytes - left:
            raise UnreadableFileError(f"has more than {words - 1:,} bytes of names and places for its text")
        return short

    while True:
        found = json.loads(stream.readline(_LONGEST_LINE))
        parts += 1
        if parts > _MOST_PARTS + (text_bytes - left) // _BYTES_A_PART:
            raise UnreadableFileError(f"has more than {parts - 1:,} parts for its text")
        if "section" in found:
            size = int(found["bytes"])
            if size > left:
                raise UnreadableFileError(f"has more than {text_bytes:,} bytes of text")
            text = stream.read(size) if size > 0 else b""
            if len(text) < size:
                raise json.JSONDecodeError("cut short", "", 0)
            left -= size
            sections.append(Section(word(found["section"]), text.decode("utf-8", "replace")))
            continue
        if "detail" in found:
            if about is None:
                raise ValueError("a detail of no document")
            about = dataclasses.replace(about, details=(*about.details, word(found["detail"]))[:_MOST_DETAILS])
            continue
        if about is not None:
            documents.append(dataclasses.replace(about, sections=tuple(sections)))
            about, sections = None, []
        if "document" in found:
            name, title, author = (word(found[field]) for field in ("document", "title", "author"))
            about = Document((), name, title, author, _time(found["happened"]))
        elif "why" in found:
            passed_over.append((word(found["passed over"]), word(found["why"])))
        elif "error" in found:
            raise (NoTextError if found.get("no text") is True else UnreadableFileError)(word(found["error"]))
        elif found["end"]:
            return ParseResult(tuple(documents), tuple(passed_over))


def _time(value: Any) -> float | None:
    happened = None if value is None else float(value)
    if happened is not None and not _YEARS[0] <= happened < _YEARS[1]:  # NaN is not, either
        raise ValueError(f"it happened at {happened}")
    return happened
