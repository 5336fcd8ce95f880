"""Everything that is a zip: its members, within limits. Nothing of it is unpacked to disk."""

from __future__ import annotations

import io
import pathlib
import zipfile
import zlib
from collections.abc import Iterator

from everlong.files.document import NoTextError, UnreadableFileError

MOST_BYTES = 256 << 20  # of all members, unpacked
_MOST_MEMBERS = 10_000


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
