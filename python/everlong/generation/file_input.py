"""A file as it is given to be read: the texts that it holds, with their names, times and places."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Sequence

from everlong.files.document import Document, UnreadableFileError
from everlong.files.parsing import parse
from everlong.memory.text_input import name_of, path_of
from everlong.paths import from_home


@dataclasses.dataclass(frozen=True)
class FileText:
    """One text to read."""

    pieces: Iterable[str]
    name: str = ""  # of its file
    path: str = ""
    happened: float | None = None  # as its file says
    places: Sequence[tuple[int, str]] = ()  # to cite: the first character of each


@dataclasses.dataclass(frozen=True)
class FileTexts:
    """All texts to read, and what of their file is none."""

    texts: Sequence[FileText]
    passed_over: tuple[tuple[str, str], ...] = ()
    # What was assumed of a text, as its encoding: name within the file, and what.
    details: tuple[tuple[str, str], ...] = ()


def file_texts(file: str | os.PathLike[str], *, called: str | None = None, descriptor: int | None = None) -> FileTexts:
    """Return the texts of a file. A plain text is named without its ending, for citations; a document with it.

    `called`: its name, where that is not the last part of its path. What goes wrong then tells that name alone.
    `descriptor`: of the file, where it is opened already.

    Raises NoTextError for a file without text, UnreadableFileError for one that cannot be read now, both ValueErrors,
    and OSError.
    """
    path = from_home(file)
    try:
        parsed = parse(path, name=called, descriptor=descriptor)
    except UnreadableFileError as error:
        raise type(error)(f"{path if called is None else called} {error}") from None
    name = name_of(path if called is None else called, ending=not parsed.plain)
    texts = [FileText([one.text], name, path_of(path), one.happened, tuple(_places(one))) for one in parsed.documents]
    details = tuple((one.name, detail) for one in parsed.documents for detail in one.details)
    return FileTexts(texts, parsed.passed_over, details)


def _places(document: Document) -> Iterable[tuple[int, str]]:
    begins = itertools.accumulate((len(section.text) for section in document.sections), initial=0)
    for begin, section in zip(begins, document.sections, strict=False):
        yield begin, ", ".join(filter(None, (document.name, section.place)))
