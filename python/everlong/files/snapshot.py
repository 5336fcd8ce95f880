"""A copy of a file, so that its digest and its words are of the same bytes, whatever becomes of it meanwhile."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator

_STEP = 1 << 20  # bytes


@contextlib.contextmanager
def snapshot(descriptor: int, most: int) -> Iterator[tuple[int, str]]:
    """Copy a file, or `most` bytes and one more of it, into RAM. Give the copy, to be read, and its digest.

    OSError where the file changes meanwhile: half of the copy may be of before.
    """
    copy = os.memfd_create("everlong", os.MFD_CLOEXEC)
    try:
        before = os.fstat(descriptor)
        found, at = hashlib.sha256(), 0
        while at <= most and (piece := os.pread(descriptor, min(_STEP, most + 1 - at), at)):
            found.update(piece)
            at += os.write(copy, piece)
        after = os.fstat(descriptor)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise OSError(errno.EBUSY, "changes while it is read")
        yield copy, found.hexdigest()
    finally:
        os.close(copy)
