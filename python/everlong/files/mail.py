"""Mail: a document for each message, by its own date. Attachments are read as files of their own."""

from __future__ import annotations

import email
import email.policy
import re
from collections.abc import Iterator
from email.message import EmailMessage, MIMEPart

from everlong.files.dates import seconds_of
from everlong.files.document import Document, NoTextError, filled, line_of, paragraph
from everlong.files.html import of_page
from everlong.files.plain import decoded

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_BEGIN = re.compile(rb"^From [^\n]*\d{4}\r?\n", re.M)
_QUOTED_FROM = re.compile(rb"^>(>*From )", re.M)


def messages(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the messages of an .eml or a mailbox, with their names: "" for the only one of an .eml."""
    begins = [found for found in _BEGIN.finditer(data) if _stands_behind_blank(data, found.start())]
    if not begins or begins[0].start() > 0:
        yield "", data
        return
    ends = [*(begin.start() for begin in begins[1:]), len(data)]
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True), 1):
        yield f"message {number}", _QUOTED_FROM.sub(rb"\1", data[begin.end() : end])


def _stands_behind_blank(data: bytes, place: int) -> bool:
    return place == 0 or data[max(0, place - 3) : place].endswith((b"\n\n", b"\n\r\n"))


def document(name: str, message: EmailMessage) -> Document:
    """Return what a message says, below who wrote it to whom, when, and of what."""
    subject = line_of(_header(message, "Subject"))
    heads = "\n".join(f"{header}: {told}" for header in _HEADERS if (told := line_of(_header(message, header))))
    body = message.get_body(preferencelist=("plain", "html"))
    return Document(
        filled([paragraph(subject, heads), paragraph(subject, "" if body is None else _body(body))]),
        name=name,
        happened=seconds_of(_header(message, "Date")),
    )


def attachments(message: EmailMessage) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of what is attached under a name."""
    for part in message.iter_attachments():
        name, payload = part.get_filename(), part.get_payload(decode=True)
        if name and isinstance(payload, bytes):
            yield line_of(name), payload


def parsed(data: bytes) -> EmailMessage:
    """Return a message. UnreadableFileError for what has no header."""
    found = email.message_from_bytes(data, policy=email.policy.default)
    if not isinstance(found, EmailMessage) or not found.keys():
        raise NoTextError("is no mail: it begins with no header")
    return found


def _header(message: EmailMessage, name: str) -> str:
    """A header that breaks every rule is none."""
    try:
        return str(message.get(name, ""))
    except (ValueError, TypeError, IndexError, AttributeError, LookupError):
        return ""


def _body(part: MIMEPart) -> str:
    payload = part.get_payload(decode=True)
    text = decoded(payload, str(part.get_content_charset() or "")) if isinstance(payload, bytes) else ""
    return of_page(text).text if part.get_content_subtype() == "html" else text
