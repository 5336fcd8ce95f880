"""OLE containers: files of an old Office, and newer ones with a password. Nothing of them is read; it is said why."""

from __future__ import annotations

import re
from collections.abc import Iterator

from everlong.files.document import Document, NoTextError

_ENTRY = 128  # bytes of an entry of a container's directory, which begins with its name
_WHAT = {  # by the name of a stream
    "EncryptedPackage": "is encrypted: save it without a password",
    "WordDocument": "holds no text that is read: it is a file of an old Word: save it as .docx",
    "Workbook": "holds no text that is read: it is a file of an old Excel: save it as .xlsx",
    "Book": "holds no text that is read: it is a file of an old Excel: save it as .xlsx",
    "PowerPoint Document": "holds no text that is read: it is a file of an old PowerPoint: save it as .pptx",
    "__properties_version1.0": "holds no text that is read: it is a mail of Outlook: save it as .eml",
}


def read(data: bytes, suffix: str) -> Iterator[Document]:
    """Raise NoTextError, which says what the file is."""
    found = next((why for name, why in _WHAT.items() if _has(data, name)), "")
    raise NoTextError(found or "holds no text that is read: it is a file of an old Office: save it as a newer one")
    yield  # a generator, as every reader


def _has(data: bytes, name: str) -> bool:
    """Return whether a container has a stream of that name: entries lie at multiples of their size."""
    wanted = re.compile(re.escape(name.encode("utf-16-le") + b"\0\0"), re.I)
    return any(found.start() % _ENTRY == 0 for found in wanted.finditer(data))
