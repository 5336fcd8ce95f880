"""Names that callers give: a memory's and a file's. A name is never a path."""

from __future__ import annotations

import re

from everlong.service_data.errors import ApiError

_MEMORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LONGEST = 200  # bytes of a file's name


def memory_name(name: object) -> str:
    """Return the name. ApiError for what is none."""
    if not isinstance(name, str) or not _MEMORY.fullmatch(name):
        raise ApiError(
            400,
            f"{str(name)[:80]!r} is no name of a memory: expected 1 to 64 letters, digits, '_', '.' or '-', the first "
            "a letter or a digit",
            "invalid_name",
            param="memory",
        )
    return name


def file_name(name: str) -> str:
    """Return the name of an uploaded file. ApiError for a path, control characters and what is too long."""
    whole = name.isprintable() and name.strip() not in ("", ".", "..") and not set(name) & set("/\\")
    try:
        whole = whole and len(name.encode()) <= _LONGEST
    except UnicodeEncodeError:
        whole = False
    if not whole:
        raise ApiError(
            400,
            f"{name[:80]!r} is no name of a file: expected at most {_LONGEST} bytes without '/' and control characters",
            "invalid_name",
            param="file",
        )
    return name
