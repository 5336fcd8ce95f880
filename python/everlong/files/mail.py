"""Mail, as the tree of parts that it is: a document for each message, and the files that are attached to it.

All text of a message is its document's, in order: of a text that is there in several forms, one form. A message that is
forwarded within another one is a document of its own.
"""

from __future__ import annotations

import contextlib
import email
import email.policy
import mimetypes
import pathlib
import re
from collections.abc import Iterator
from email.message import Message

from everlong.files import html
from everlong.files.dates import seconds_of
from everlong.files.document import Document, Inner, NoTextError, PassedOverError, filled, line_of, paragraph
from everlong.files.mail_text import content_of, flowed, header_of
from everlong.files.plain import decoded_with_details

_HEADERS = ("From", "To", "Cc", "Bcc", "Date", "Subject")
_DEEPEST = 50  # parts within parts
_NO_WORDS = ("css", "javascript", "x-amp-html")  # kinds of text
_ENDINGS = {"calendar": "ics", "vcard": "vcf", "x-vcard": "vcf", "markdown": "md", "rtf": "rtf", "xml": "xml"}
_ENCRYPTED = ("application/pgp-encrypted", "application/x-pkcs7-mime", "application/pkcs7-mime")
_SIGNATURES = ("application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature")
_PGP = re.compile(r"^-----BEGIN PGP MESSAGE-----$.*?(?:^-----END PGP MESSAGE-----$|\Z)", re.M | re.S)
_BOILERPLATE = re.compile(r"MIME|multi-?part", re.I)
_LONGEST_CONTENT_HEADER = 4096  # characters: Python takes parameters apart in quadratic time
_ENRICHED = re.compile(r"<(?:param>[^<]{0,500}+</param|/?[a-z-]{1,30})>", re.I | re.S)


class _Policy(email.policy.Compat32):
    """Cuts headers that say how a part is to be read: none that is honest is long."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        return name, value[:_LONGEST_CONTENT_HEADER] if name.lower().startswith("content-") else value


_POLICY = _Policy()


def read(name: str, data: bytes) -> Iterator[Document | Inner | PassedOverError]:
    """Yield what a message says, below who wrote it to whom, when, and of what; then what is within it.

    `name`: of the message within its file. Raises NoTextError for what has no header.
    """
    yield from _Reader(name).read(parsed(data))


def parsed(data: bytes) -> Message:
    """Return a message. NoTextError for what has no header."""
    found = email.message_from_bytes(data, policy=_POLICY)
    if not found.keys():
        raise NoTextError("is no mail: it begins with no header")
    return found


class _Reader:
    def __init__(self, name: str, depth: int = 0) -> None:
        self._name, self._depth = name, depth
        self._texts: list[str] = []
        self._details: list[str] = []
        self._within: list[Message | Inner | PassedOverError] = []
        self._parts = 0

    def read(self, message: Message) -> Iterator[Document | Inner | PassedOverError]:
        if self._depth > _DEEPEST:
            yield PassedOverError(self._name, f"lies more than {_DEEPEST} messages deep: what is deeper is not read")
            return
        self._walk(message, 0)
        subject = line_of(header_of(message, "Subject"))
        heads = "\n".join(f"{name}: {value}" for name in _HEADERS if (value := header_of(message, name)))
        yield Document(
            filled(paragraph(subject, text) for text in (heads, *self._texts)),
            name=self._name,
            happened=seconds_of(header_of(message, "Date")),
            details=tuple(dict.fromkeys(self._details)),
        )
        forwarded = 0
        for one in self._within:
            if isinstance(one, Message):
                forwarded += 1
                yield from _Reader(self._named(f"forwarded message {forwarded}"), self._depth + 1).read(one)
            else:
                yield one

    def _named(self, name: str) -> str:
        return f"{self._name}, {name}" if self._name else name

    def _pass_over(self, name: str, why: str) -> None:
        self._within.append(PassedOverError(self._named(name), why))

    def _walk(self, part: Message, depth: int) -> None:
        kind = part.get_content_type()
        self._parts += 1
        if depth > _DEEPEST:
            self._pass_over(f"part {self._parts}", f"lies more than {_DEEPEST} parts deep: what is deeper is not read")
        elif kind == "multipart/alternative" and part.is_multipart():
            self._walk_one_form(part, depth)
        elif kind == "multipart/encrypted":
            self._pass_over("encrypted part", "is encrypted: decrypt it")
        elif part.get_content_maintype() == "message":
            self._walk_message(part, kind, depth)
        elif part.is_multipart():
            self._add_around(part.preamble)
            for child in _children(part):
                self._walk(child, depth + 1)
            self._add_around(part.epilogue)
        elif kind in _SIGNATURES:
            self._pass_over("signature", "holds no text: it is a signature")
        elif kind in _ENCRYPTED:
            signed = str(part.get_param("smime-type", "")).lower() == "signed-data"
            self._pass_over("signed part" if signed else "encrypted part", "is wrapped by S/MIME: save it unwrapped")
        else:
            self._add_leaf(part, kind)

    def _walk_message(self, part: Message, kind: str, depth: int) -> None:
        if kind in ("message/external-body", "message/partial"):
            why = "lies elsewhere" if kind.endswith("body") else "is one piece of a message in several mails"
            self._pass_over(f"part {self._parts}", why)
        elif kind in ("message/rfc822", "message/global", "message/news"):
            for inner in _children(part):
                self._within.append(_unwrapped(inner, str(part.get("Content-Transfer-Encoding", ""))))
        elif part.is_multipart():  # a report of delivery: blocks of headers
            blocks = ("\n".join(f"{name}: {value}" for name, value in child.items()) for child in _children(part))
            self._texts.append("\n\n".join(filter(None, blocks)))
            for child in _children(part):  # of other kinds of messages, which have more than headers
                self._walk(child, depth + 1)
        else:
            self._add_leaf(part, "text/plain")

    def _walk_one_form(self, part: Message, depth: int) -> None:
        """Walk the plain form, and the other one where the plain one says much less; and parts of other kinds."""
        forms: list[_Reader] = []
        for child in _children(part):
            form = _Reader(self._name, self._depth)
            form._parts = self._parts
            form._walk(child, depth + 1)
            self._parts = form._parts
            forms.append(form)
        words = [len(" ".join(form._texts).split()) for form in forms]
        plain = next((at for at, child in enumerate(_children(part)) if child.get_content_type() == "text/plain"), None)
        best = max(range(len(forms)), key=lambda at: words[at], default=None)
        chosen = plain if plain is not None and best is not None and 3 * words[plain] >= words[best] else best
        for at, form in enumerate(forms):
            if at == chosen:
                self._texts += form._texts
                self._details += form._details
            self._within += form._within

    def _add_around(self, text: object) -> None:
        """Add what stands before or behind the parts, as a list's footer does."""
        if isinstance(text, str) and text.strip() and not _BOILERPLATE.search(text):
            self._texts.append(decoded_with_details(text.encode("ascii", "surrogateescape"))[0])

    def _add_leaf(self, part: Message, kind: str) -> None:
        name = line_of(header_of(part, "filename"))
        if not name and part.get_content_maintype() not in ("text", "multipart"):  # as a page's pictures
            name = line_of(header_of(part, "Content-Location").rpartition("/")[2])
        data, damage = content_of(part)
        if damage:
            self._details.append(f"{name or f'part {self._parts}'}: {damage}")
        maintype, _, subtype = kind.partition("/")
        if maintype not in ("text", "multipart") or name or subtype in _ENDINGS or subtype in ("csv", *_NO_WORDS):
            if subtype not in _NO_WORDS or name:
                self._attach(part, name, kind, data)
            return
        try:
            self._add_text(part, subtype, data)
        except NoTextError as error:
            self._pass_over(f"part {self._parts}", str(error))

    def _add_text(self, part: Message, subtype: str, data: bytes) -> None:
        charset = _parameter(part, "charset")
        if subtype == "html":
            markup, details = decoded_with_details(data, charset) if charset else html.markup_of(data)
            page = html.Page(markup)
            text = page.document().text
            for one in page.passed_over:
                self._pass_over(f"part {self._parts}, {one.name}", str(one))
        else:
            text, details = decoded_with_details(data, charset)
            if _parameter(part, "format").lower() == "flowed":
                text = flowed(text, delete_space=_parameter(part, "delsp").lower() == "yes")
            if subtype in ("enriched", "richtext"):
                text = _ENRICHED.sub("", text.replace("<<", "<"))
            if "-----BEGIN PGP MESSAGE-----" in text:
                text = _PGP.sub("", text)
                self._pass_over("encrypted text", "is encrypted by PGP: decrypt it")
        self._texts.append(text)
        self._details += details

    def _attach(self, part: Message, name: str, kind: str, data: bytes) -> None:
        maintype, _, subtype = kind.partition("/")
        ending = pathlib.PurePosixPath(name).suffix.lower().removeprefix(".")
        if not ending:
            ending = _ENDINGS.get(subtype) or (mimetypes.guess_extension(kind) or "").removeprefix(".")
        charset = _parameter(part, "charset")
        if maintype == "text" and charset:  # which its reader does not know
            with contextlib.suppress(NoTextError):
                data = decoded_with_details(data, charset)[0].encode("utf-8-sig", "replace")
        self._within.append(Inner(self._named(name or f"part {self._parts} ({kind})"), data, ending))


def _children(part: Message) -> list[Message]:
    payload = part.get_payload()
    return [child for child in payload if isinstance(child, Message)] if isinstance(payload, list) else []


def _unwrapped(message: Message, encoding: str) -> Message:
    """Return a message that its sender encoded as a whole, which is against the rules."""
    if not message.keys() and encoding.strip():
        message["Content-Transfer-Encoding"] = encoding
        return email.message_from_bytes(content_of(message)[0], policy=_POLICY)
    return message


def _parameter(part: Message, name: str) -> str:
    """Return a parameter of a part's type. One that breaks every rule is none."""
    try:
        found = part.get_param(name, "")
    except (ValueError, TypeError, IndexError, AttributeError, LookupError):
        return ""
    return str(found[2] if isinstance(found, tuple) else found).strip()
