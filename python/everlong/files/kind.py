"""Which reader a file is for: by what it begins with, then by its name's ending."""

from __future__ import annotations

import re

from everlong.files.document import NoTextError

HEAD = 1 << 13  # bytes that are looked at

# Readers by ending; other texts are plain.
_BY_SUFFIX = {
    **dict.fromkeys(("html", "htm", "xhtml"), "html"),
    **dict.fromkeys(("csv", "tsv"), "tables"),
    **dict.fromkeys(("srt", "vtt"), "subtitles"),
    "ipynb": "notebook",
    "eml": "mail",
    "mbox": "mail",
}
_NO_TEXT = {
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF8": "a picture",
    b"\x7fELF": "a program",
    b"\x1f\x8b": "compressed by gzip: unpack it",
    b"\xfd7zXZ": "compressed by xz: unpack it",
    b"7z\xbc\xaf": "a 7z archive: unpack it",
    b"Rar!": "a rar archive: unpack it",
    b"\xd0\xcf\x11\xe0": "a file of an old Office: save it as .docx, .xlsx or .pptx",
    b"SQLite format 3": "a database",
}
_HTML = re.compile(
    rb"\A(\xef\xbb\xbf)?\s*(<\?xml[^>]*>\s*)?(?>(?:<!--.*?-->\s*)*)<(!doctype\s+html|html)\b", re.I | re.S
)
_MBOX = re.compile(rb"\AFrom [^\n]*\d{4}\r?\n[A-Za-z-]+:")
# "[03/05/2024, 14:02:11] Ada: ..." or "5/3/24, 2:02 PM - Ada: ..."
WHATSAPP = re.compile(
    r"^\u200e?\[?(\d{1,4})[./-](\d{1,2})[./-](\d{2,4}),?\s+(\d{1,2})[:.](\d{2})(?:[:.](\d{2}))?\s*([AaPp]\.?\s?[Mm]\.?)?"
    r"(?:\]|\s+-)\s+"
)
_CHAT_JSON = re.compile(rb'\A\s*[\[{].*"(mapping|chat_messages)"\s*:', re.S)


def kind_of(head: bytes, suffix: str) -> str:
    """Return the name of the reader for a file that begins with `head`; "plain" for a text that is its own.

    `suffix` is its ending, in small letters and without the dot. NoTextError for what is known to be no text.
    """
    if not head and suffix in CONTAINERS:
        raise NoTextError("is empty")
    if head.lstrip()[:5] == b"%PDF-" or (suffix == "pdf" and b"%PDF-" in head[:1024]):
        return "pdf"
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "archive"
    for begin, what in _NO_TEXT.items():
        if head.startswith(begin):
            raise NoTextError(f"holds no text: it is {what}")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return _BY_SUFFIX.get(suffix, "plain")
    if _MBOX.match(head):
        return "mail"
    if suffix == "json":
        return "chats" if _CHAT_JSON.match(head) else "plain"
    if suffix in ("txt", ""):
        return "chats" if _is_whatsapp(head) else "plain"
    if suffix not in _BY_SUFFIX and suffix in CONTAINERS and _HTML.match(head):
        return "html"
    return _BY_SUFFIX.get(suffix, "plain")


# Endings of what is no text by itself: a text that bears one is told by its first words.
CONTAINERS = ("pdf", "docx", "pptx", "xlsx", "epub", "zip", "doc", "xls")


def _is_whatsapp(head: bytes) -> bool:
    lines = head.decode("utf-8", "replace").lstrip("\ufeff").splitlines()[:6]
    return bool(lines) and WHATSAPP.match(lines[0]) is not None and sum(map(bool, map(WHATSAPP.match, lines))) >= 2
