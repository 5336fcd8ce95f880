"""Everything that is a zip: Office files, e-books, and archives of other files. Nothing of it is unpacked to disk."""

from __future__ import annotations

import io
import pathlib
import zipfile
import zlib
from collections.abc import Callable, Iterator

from everlong.files import epub, sheets, slides, word
from everlong.files.document import Document, Inner, NoTextError, PassedOverError, UnreadableFileError

MOST_BYTES = 256 << 20  # of all members, unpacked
_MOST_MEMBERS = 10_000
_READERS: dict[str, Callable[[bytes, str], Iterator[Document | Inner | PassedOverError]]] = {
    "word/document.xml": word.read,
    "ppt/presentation.xml": slides.read,
    "xl/workbook.xml": sheets.read,
    "META-INF/container.xml": epub.read,
}


def opened(data: bytes) -> zipfile.ZipFile:
    """Return a zip whose members, unpacked, come to no more than MOST_BYTES. A member gives no more than it says."""
    try:
        found = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise NoTextError(f"is no whole archive: {error}") from None
    listed = found.infolist()
    size = sum(member.file_size for member in listed)
    if len(listed) > _MOST_MEMBERS:
        raise UnreadableFileError(f"has {len(listed):,} members; at most {_MOST_MEMBERS:,} are read")
    if size > MOST_BYTES:
        raise UnreadableFileError(f"unpacks to {size:,} bytes; at most {MOST_BYTES:,} are read")
    return found


def office_reader(data: bytes) -> str | None:
    """Return by which member of it a zip is an Office file or an e-book; None for any other archive."""
    names = set(opened(data).namelist())
    return next((name for name in _READERS if name in names), None)


def read_office(data: bytes, member: str) -> Iterator[Document | Inner | PassedOverError]:
    """Yield the documents of an Office file or an e-book."""
    yield from _READERS[member](data, "")


def members(data: bytes) -> Iterator[tuple[str, str, bytes | UnreadableFileError]]:
    """Yield name, ending and bytes of an archive's files, in their order; in place of bytes what is wrong with one."""
    archive = opened(data)
    for member in archive.infolist():
        path = pathlib.PurePosixPath(member.filename)
        if member.is_dir() or path.name.startswith(("._", ".DS_Store")) or path.parts[0] == "__MACOSX":
            continue
        found: bytes | UnreadableFileError
        try:
            found = archive.read(member)
        except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, OSError, EOFError) as error:
            found = UnreadableFileError(f"cannot be unpacked: {error}")
        yield member.filename, path.suffix.lower().removeprefix("."), found
