"""All documents of some bytes, with those of the files within them. It runs in the child process alone."""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Iterable, Iterator

from everlong.files import archive, compressed
from everlong.files.document import Document, Inner, PassedOverError, UnreadableFileError, line_of
from everlong.files.kind import HEAD, OFFICE, kind_of, kind_of_package

_MOST_NESTED_FILES = 3


def documents_in(data: bytes, suffix: str, depth: int = 0) -> Iterator[Document | PassedOverError]:
    """Yield what the bytes of a file hold. Raises UnreadableFileError for a file that is no text."""
    kind = kind_of(data[:HEAD], suffix)
    if kind == "archive":
        kind = kind_of_package(archive.opened(data)) or kind
    if kind == "archive":
        yield from _members(archive.members(data), depth)
    elif kind == "tar":
        yield from _members(archive.members_of_tar(data), depth)
    elif kind == "compressed":
        yield from _unpacked(data, depth)
    elif kind == "mail":
        from everlong.files import mail, mailbox  # which no other file needs: they take longer than a note

        for name, message in mailbox.messages(data, suffix):
            yield from _passing_over(name, _read(mail.read(name, message), depth))
    else:
        room = "office" if kind in OFFICE else "files"
        yield from _read(importlib.import_module(f"everlong.{room}.{kind}").read(data, suffix), depth)


def _members(found: Iterable[archive.Member | PassedOverError], depth: int) -> Iterator[Document | PassedOverError]:
    for member in found:
        if isinstance(member, PassedOverError):
            yield member
        else:
            name, ending, data = member
            yield from _within(line_of(name), data, ending, depth)


def _unpacked(data: bytes, depth: int) -> Iterator[Document | PassedOverError]:
    """Yield what a compressed file holds: the members of a tar, or the one file that it is."""
    inner, damage = compressed.unpacked(data)
    name = line_of(compressed.name_of(data))
    if compressed.is_tar(inner):
        yield from _members(archive.members_of_tar(inner), depth)
    else:
        yield from _within(name, inner, pathlib.PurePosixPath(name).suffix.lower().removeprefix("."), depth)
    if damage:
        yield PassedOverError(name, damage)


def _read(found: Iterable[Document | Inner | PassedOverError], depth: int) -> Iterator[Document | PassedOverError]:
    """Yield what a reader found, with what the files hold that it found within its own."""
    for one in found:
        if isinstance(one, Inner):
            yield from _within(one.name, one.data, one.suffix, depth)
        else:
            yield one


def _within(
    name: str, data: bytes | UnreadableFileError, suffix: str, depth: int
) -> Iterator[Document | PassedOverError]:
    """Yield what a file within a file holds. What cannot be read is passed over."""
    if isinstance(data, UnreadableFileError):
        yield PassedOverError(name, str(data))
        return
    if depth >= _MOST_NESTED_FILES:
        yield PassedOverError(name, f"lies {_MOST_NESTED_FILES} files deep: what is deeper is not read")
        return
    for found in _passing_over(name, documents_in(data, suffix, depth + 1)):
        if isinstance(found, Document):
            yield found.within(name)
        else:
            yield PassedOverError(f"{name}, {found.name}" if found.name != name else name, str(found))


def _passing_over(name: str, found: Iterator[Document | PassedOverError]) -> Iterator[Document | PassedOverError]:
    """Yield what is found, and in place of a failure which part of the file is passed over, where it has a name."""
    try:
        yield from found
    except (MemoryError, ImportError, OSError):
        raise
    except UnreadableFileError as error:
        if not name:
            raise
        yield PassedOverError(name, str(error))
    except Exception as error:  # a library's own, about bytes that it did not expect
        if not name:
            raise
        yield PassedOverError(name, f"cannot be read: {type(error).__name__}: {error}")
