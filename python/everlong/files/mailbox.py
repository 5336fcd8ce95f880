"""The messages of a file of mail: a mailbox (mbox), one message (.eml, a file of a Maildir), Apple's .emlx."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

from everlong.files.document import NoTextError
from everlong.files.encoding import decoded

_HEADER = rb"(?:[A-Za-z][A-Za-z0-9-]{0,70}[ \t]*:|>From )"
_KNOWN = (
    rb"(?:return-path|received|delivered-to|from|to|subject|date|message-id|mime-version|status|content-[a-z-]{1,70}"
    rb"|x-[a-z0-9-]{1,70})[ \t]*:"
)
_DAY = rb"(?:mon|tue|wed|thu|fri|sat|sun)"
_MONTH = rb"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_CLOCK = rb"\d{1,2}:\d{2}(?::\d{2})?"
_WHEN = (
    rb"(?:"
    + (_DAY + rb"[ \t]+" + _MONTH + rb"[ \t]+\d{1,2}[ \t]+" + _CLOCK + rb"(?:[ \t]+[^\s:]{1,6}){0,2}[ \t]+\d{4}\b")
    + rb"|"
    + (rb"(?:" + _DAY + rb",?[ \t]+)?\d{1,2}[ \t-]" + _MONTH + rb"[ \t-]\d{2,4}[ \t]+" + _CLOCK)
    + rb"|\d{4}-\d{2}-\d{2}[ \tT]"
    + _CLOCK
    + rb")"
)
# A line that begins a message: with a time as mailers write it, or before a header that mail begins with.
_BEGIN = re.compile(
    rb"^From (?=(?P<when>[^\n]{0,300}?\b"
    + (_WHEN + rb"))?[^\n]*\n(?=(?P<header>" + _HEADER + rb"))?(?=(?P<known>" + _KNOWN + rb"))?"),
    re.M | re.I,
)
_QUOTED_FROM = re.compile(rb"^>(>*From )", re.M)
_EMLX = re.compile(rb"\A\s*(\d{1,10})[ \t]*\r?\n")


def messages(data: bytes, suffix: str) -> Iterator[tuple[str, bytes]]:
    """Yield the messages, with their names: "" for the only one of a file that is no mailbox."""
    data = _as_bytes(data)
    if suffix == "emlx" and (length := _EMLX.match(data)):
        data = data[length.end() : length.end() + int(length[1])]
    begins = [found for found in _BEGIN.finditer(data) if _begins_message(data, found)] if _is_mailbox(data) else []
    if not begins:
        yield "", data
        return
    ends = [*(begin.start() for begin in begins[1:]), len(data)]
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True), 1):
        yield f"message {number}", _QUOTED_FROM.sub(rb"\1", data[begin.end() : end])


def _is_mailbox(data: bytes) -> bool:
    return data.startswith(b"From ")


def _begins_message(data: bytes, found: re.Match[bytes]) -> bool:
    """Tell a line that begins a message from a sentence that begins with From."""
    at = found.start()
    if at == 0:
        return True
    behind_blank = data[max(0, at - 3) : at].endswith((b"\n\n", b"\n\r\n"))
    if found["when"]:
        return behind_blank or found["header"] is not None
    return behind_blank and found["known"] is not None


def _as_bytes(data: bytes) -> bytes:
    """Return mail in an encoding that has ASCII in it."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in data[:64]:
        try:
            data = decoded(data).text.encode("utf-8", "replace")
        except NoTextError:
            return data
    return data.removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")
