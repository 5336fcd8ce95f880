"""Names that callers give: a memory's and a file's. A name is never a path."""

from __future__ import annotations

import re
import unicodedata

from everlong.service_data.errors import ApiError

_MEMORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LONGEST = 200  # bytes of a file's name
# By general category: control characters, halves of surrogate pairs, ends of lines and paragraphs. Spaces of all kinds,
# joiners, and letters that this Python does not know yet, are in names that systems make.
_NO_LETTERS = frozenset(("Cc", "Cs", "Zl", "Zp"))
_UNSEEN = frozenset(("Cf", "Zs"))  # a name of these alone looks like none
_TURNING = frozenset(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))))  # what makes text read another way


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
    seen = "".join(letter for letter in name if unicodedata.category(letter) not in _UNSEEN)
    whole = seen not in ("", ".", "..") and _TURNING.isdisjoint(name) and set("/\\").isdisjoint(name)
    whole = whole and _NO_LETTERS.isdisjoint(map(unicodedata.category, name))
    if not whole or len(name.encode()) > _LONGEST:
        raise ApiError(
            400,
            f"{name[:80]!r} is no name of a file: expected at most {_LONGEST} bytes without '/' and control characters",
            "invalid_name",
            param="file",
        )
    return name
