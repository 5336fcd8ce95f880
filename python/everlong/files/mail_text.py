"""Words of a mail, behind the encodings that mail has of its own: of headers, of contents, of folded lines."""

from __future__ import annotations

import base64
import binascii
import quopri
import re
from email.message import Message

from everlong.files.document import NoTextError, cleaned
from everlong.files.plain import decoded

_ENCODED_WORDS = re.compile(r"(?:=\?[^?\s]+\?[bBqQ]\?[^?\n]*\?=\s*)+")
_ENCODED_WORD = re.compile(r"=\?([^?\s*]+)(?:\*[^?\s]*)?\?([bBqQ])\?([^?\n]*)\?=(\s*)")
_NO_BASE64 = re.compile(rb"[^A-Za-z0-9+/=]+")
_PIECE = re.compile(rb"[^=]+(={0,2})")
_BAD_QUOTED = re.compile(rb"=(?![0-9A-Fa-f]{2}|[ \t]*\r?\n|[ \t]*\Z)")
_QUOTES = re.compile(r">*")


def header_of(message: Message, name: str) -> str:
    """Return a header as one line, all of them where it is there several times; `filename`: of a part's content."""
    try:
        if name == "filename":
            found = [message.get_filename("")]
        else:
            found = [str(value) for key, value in message.raw_items() if key.lower() == name.lower()]
    except (ValueError, TypeError, IndexError, AttributeError, LookupError):
        return ""
    return ", ".join(filter(None, (" ".join(cleaned(_decoded_header(value)).split()) for value in found)))


def _decoded_header(raw: str) -> str:
    return _ENCODED_WORDS.sub(lambda found: _decoded_words(found[0]), _text(raw.encode("utf-8", "surrogateescape")))


def _decoded_words(words: str) -> str:
    """Return encoded words behind one another. A letter's bytes may be in two of them."""
    charset, pending, out = "", bytearray(), list[str]()
    for found in _ENCODED_WORD.finditer(words):
        if found[1].lower() != charset:
            out.append(_text(bytes(pending), charset))
            charset, pending = found[1].lower(), bytearray()
        word = found[3].encode("utf-8", "surrogateescape")
        pending += _base64(word)[0] if found[2] in "bB" else quopri.decodestring(word.replace(b"_", b" "))
    trailing = words[len(words.rstrip()) :]
    return "".join((*out, _text(bytes(pending), charset), trailing))


def _text(data: bytes, charset: str = "") -> str:
    try:
        return decoded(data, charset)
    except NoTextError:
        return data.decode("latin-1")


def content_of(part: Message) -> tuple[bytes, str]:
    """Return a part's bytes, and what is wrong with how they are encoded; "" for nothing."""
    encoding = str(part.get("Content-Transfer-Encoding", "")).strip().lower()
    if encoding in ("x-uuencode", "uuencode", "uue", "x-uue"):
        return _bytes_of(part), ""
    del part["Content-Transfer-Encoding"]  # so that the bytes come as they stand there
    raw = _bytes_of(part)
    if encoding == "base64":
        return _base64(raw)
    if encoding == "quoted-printable":
        bad = _BAD_QUOTED.search(raw)
        return quopri.decodestring(raw), "its quoted-printable is damaged" if bad else ""
    known = encoding in ("", "7bit", "8bit", "binary")
    return raw, "" if known else f"its transfer encoding is unknown: {encoding[:40]}"


def _bytes_of(part: Message) -> bytes:
    found = part.get_payload(decode=True)
    return found if isinstance(found, bytes) else b""


def _base64(raw: bytes) -> tuple[bytes, str]:
    """Return the bytes of base64, also of several that stand behind one another, and what is wrong with it."""
    letters = _NO_BASE64.sub(b"", raw)
    damaged = any(not gap.isspace() for gap in _NO_BASE64.findall(raw))
    out = bytearray()
    for piece in _PIECE.finditer(letters):
        piece_letters = piece[0].rstrip(b"=")
        over = len(piece_letters) % 4
        damaged |= over == 1 or (over + len(piece[1])) % 4 != 0
        piece_letters = piece_letters[:-1] if over == 1 else piece_letters + b"=" * (-over % 4)
        try:
            out += base64.b64decode(piece_letters)
        except binascii.Error:  # cannot be, of these letters
            damaged = True
    return bytes(out), "its base64 is damaged" if damaged else ""


def flowed(text: str, *, delete_space: bool) -> str:
    """Return text of `format=flowed` with its paragraphs in one line each."""
    out: list[list[str]] = []  # the pieces of each line
    open_depth = -1  # quotes before the line that goes on
    for line in text.split("\n"):
        depth = len(_QUOTES.match(line)[0])  # type: ignore[index]
        words = line[depth:].removeprefix(" ")
        soft = words.endswith(" ") and words != "-- "
        content = words[:-1] if soft and delete_space else words
        if depth == open_depth and words != "-- ":
            out[-1].append(content)
        else:
            out.append([f"{'>' * depth} {content}" if depth else content])
        open_depth = depth if soft else -1
    return "\n".join("".join(line).rstrip() for line in out)
