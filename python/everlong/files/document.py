"""Documents: what is read out of a file, with the places to cite."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_LONGEST_PLACE = 120  # characters
_SHORT_SECTIONS = 200_000  # of a file, which may be as short as they are
_LETTERS_A_SECTION = 64  # that more sections than that have on average


class UnreadableFileError(ValueError):
    """No text can be read out of a file. The message says why, and what to do.

    It may be so for now: of a limit, a machine that is busy, or a package that is missing.
    """


class NoTextError(UnreadableFileError):
    """A file itself says that it holds no text, or is broken: it stays so until the file is another one."""


class PassedOverError(UnreadableFileError):
    """A part of a file that is not read: `name`, which is its place, and why. A reader yields it beside documents."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


@dataclasses.dataclass(frozen=True)
class Inner:
    """A file within a file, which the reader for its kind is to read. A reader yields it beside documents."""

    name: str
    data: bytes
    suffix: str = ""  # the ending of its name, in small letters and without the dot


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A stretch of text that is cited by one place. The sections of a document, joined, are its text."""

    place: str  # as "p. 14"; "" where there is nothing to say
    text: str


@dataclasses.dataclass(frozen=True)
class Document:
    """One text of a file: the whole file, a mail of a mailbox, a member of an archive."""

    sections: tuple[Section, ...]
    name: str = ""  # within its file, as "notes/plan.docx"; "" for the file itself
    title: str = ""
    author: str = ""
    happened: float | None = None  # when it was written, or what it tells of happened; in seconds since 1970
    details: tuple[str, ...] = ()  # what its reader assumed, or mended, as an encoding that it guessed

    @property
    def text(self) -> str:
        return "".join(section.text for section in self.sections)

    def within(self, name: str) -> Document:
        """Return it as a part of another file, under `name` there."""
        return dataclasses.replace(self, name=f"{name}, {self.name}" if self.name else name)

    def with_head(self) -> Document:
        """Return it with title and author as its first words, where it does not begin with them."""
        begin = ""
        for section in self.sections:
            begin += section.text[: 500 - len(begin)]
            if len(begin) == 500:
                break
        pieces = [f"{what}: {told}" for what, told in (("Title", self.title), ("Author", self.author)) if told]
        if not pieces or all(told in begin for told in (self.title, self.author)):
            return self
        return dataclasses.replace(self, sections=(Section("", "\n".join(pieces) + "\n\n"), *self.sections))


@dataclasses.dataclass(frozen=True)
class ParseResult:
    """What came of a file."""

    documents: tuple[Document, ...]
    passed_over: tuple[tuple[str, str], ...] = ()  # parts of it that are no text, or cannot be read: name, and why
    plain: bool = False  # it is its own text, byte for byte but for the encoding


class Budget:
    """Joins sections of a file where they are so many and so short that their places take more RAM than its text."""

    def __init__(self) -> None:
        self._sections = self._letters = 0

    def joined(self, sections: Iterable[Section]) -> Iterator[Section]:
        """Yield the sections of one more document. Several that are joined are cited by the first one's place."""
        place: str | None = None
        texts: list[str] = []
        for section in sections:
            if place is None:
                place = section.place
            elif self._sections < _SHORT_SECTIONS + self._letters // _LETTERS_A_SECTION:
                yield Section(place, "".join(texts))
                self._sections += 1
                place, texts = section.place, []
            texts.append(section.text)
            self._letters += len(section.text)
        if place is not None:
            yield Section(place, "".join(texts))
            self._sections += 1


def paragraph(place: str, text: str) -> Section:
    """Return text as a section that ends with a blank line."""
    return Section(place, cleaned(text).strip("\n") + "\n\n")


def filled(sections: Iterable[Section]) -> tuple[Section, ...]:
    """Return the sections that have text."""
    return tuple(section for section in sections if section.text.strip())


def cleaned(text: str) -> str:
    """Return text without control characters, and with U+FFFD for each half of a surrogate pair."""
    if text.isascii() and text.isprintable():  # as most cells of a table are
        return text
    return (
        _CONTROL.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n"))
        .encode("utf-16", "surrogatepass")
        .decode("utf-16", "replace")
    )


def line_of(text: object) -> str:
    """Return what a file says of itself as one short line: a title, a name, a place."""
    told = " ".join(cleaned(str(text or "")).split())
    return told if len(told) <= _LONGEST_PLACE else told[: _LONGEST_PLACE - 1] + "…"
