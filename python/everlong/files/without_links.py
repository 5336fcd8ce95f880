"""Opens a path without a link anywhere on it: one that is put in place of a folder meanwhile leads nowhere."""

from __future__ import annotations

import errno
import os


def open_without_links(path: str, flags: int) -> int:
    """Return a descriptor of what lies at a path from the root, opened to be read, with `flags` of os.open.

    OSError where it, or a folder above it, is a link, and as of os.open.
    """
    *folders, name = [part for part in path.split(os.sep) if part] or ["."]
    at = os.open(os.sep, os.O_PATH | os.O_CLOEXEC)
    try:
        for folder in folders:
            at, above = _folder_in(at, folder, path), at
            os.close(above)
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=at)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a link, which is not followed", path) from None
        raise
    finally:
        os.close(at)


def _folder_in(at: int, folder: str, path: str) -> int:
    try:
        return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    except NotADirectoryError:  # that is what Linux says of a link, too
        why = f"lies behind {folder!r}, which is a link, or no folder any more"
        raise NotADirectoryError(errno.ENOTDIR, why, path) from None
