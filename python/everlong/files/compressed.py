"""What gzip, bzip2 or xz made smaller: a tar, or one file."""

from __future__ import annotations

import bz2
import lzma
import pathlib
import zlib
from typing import Any

from everlong.files.archive import MOST_BYTES
from everlong.files.document import NoTextError, UnreadableFileError

MAGIC = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0")
_STEP = 1 << 20  # bytes
_XZ_RAM = 256 << 20


def is_tar(data: bytes) -> bool:
    """Return whether some bytes begin as a tar does."""
    return data[257:262] == b"ustar"


def unpacked(data: bytes) -> tuple[bytes, str]:
    """Return what was made smaller, and what is wrong with it: then what stands before the damage.

    Raises UnreadableFileError for more than MOST_BYTES, and NoTextError where nothing can be unpacked.
    """
    out = bytearray()
    damage = ""
    left = data
    while left is data or left.startswith(MAGIC):  # several may stand behind one another
        reader = _reader(left)
        try:
            while not reader.eof:
                piece = reader.decompress(left, _STEP)
                left = reader.unconsumed_tail if hasattr(reader, "unconsumed_tail") else b""
                out += piece
                if len(out) > MOST_BYTES:
                    raise UnreadableFileError(f"unpacks to more than {MOST_BYTES:,} bytes")
                if not piece and not left and not reader.eof:
                    raise EOFError("it is cut short")
        except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
            damage = f"is damaged: {error}"
            break
        left = reader.unused_data
    if damage and not out:
        raise NoTextError(damage)
    return bytes(out), damage


def _reader(data: bytes) -> Any:
    if data.startswith(MAGIC[0]):
        return zlib.decompressobj(31)
    return bz2.BZ2Decompressor() if data.startswith(MAGIC[1]) else lzma.LZMADecompressor(memlimit=_XZ_RAM)


def name_of(data: bytes) -> str:
    """Return the name that gzip notes of the one file; "content" where there is none."""
    if data[:2] == MAGIC[0] and len(data) > 10 and data[3] & 0x08 and not data[3] & 0x04:
        name = data[10 : data.find(b"\0", 10)].decode("utf-8", "replace")
        return pathlib.PurePosixPath(name).name or "content"
    return "content"
