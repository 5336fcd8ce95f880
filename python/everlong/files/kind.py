"""Which reader a file is for: by what it begins with, then by its name's ending."""

from __future__ import annotations

import re
import zipfile
import zlib

from everlong.files.chat_lines import are_messages
from everlong.files.document import NoTextError

HEAD = 1 << 13  # bytes that are looked at

# Readers by ending; other texts are plain.
_BY_SUFFIX = {
    **dict.fromkeys(("html", "htm", "xhtml", "xht"), "html"),
    **dict.fromkeys(("csv", "tsv", "tab"), "tables"),
    **dict.fromkeys(("srt", "vtt", "ass", "ssa", "sbv"), "subtitles"),
    "ipynb": "notebook",
    **dict.fromkeys(("eml", "emlx", "mbox", "mht", "mhtml"), "mail"),
}
_NO_TEXT = {
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF8": "a picture",
    b"\x7fELF": "a program",
    b"7z\xbc\xaf": "a 7z archive: unpack it",
    b"Rar!": "a rar archive: unpack it",
    b"SQLite format 3": "a database",
    b"\x78\x9f\x3e\x22": "an attachment in Outlook's own form (TNEF): save it from Outlook",
}
_HTML = re.compile(
    rb"\A(\xef\xbb\xbf)?\s*(<\?xml[^>]*>\s*)?(?>(?:<!--.*?-->\s*)*)<(!doctype\s+html|html)\b", re.I | re.S
)
_MBOX = re.compile(rb"\AFrom [^\n]*\d{4}\r?\n[A-Za-z-]+:")
# As a file of a Maildir begins, whose name has no ending.
_MAIL = re.compile(
    rb"\A(?:Return-Path|Received|Delivered-To|From|To|Subject|Date|Message-ID|MIME-Version|X-[A-Za-z0-9-]+):[^\n]*\n"
    rb"(?:(?:[ \t]|[A-Za-z][A-Za-z0-9-]*:)[^\n]*\n)*?(?:From|To|Subject|Date|Message-ID|MIME-Version):",
    re.I,
)
_NUMBER = re.compile(rb"\s*[^\n]{0,20}?[\d\x80-\xff]")  # of any script, as a time begins with
# What mail programs put in the head of a mail. A note that begins with "To:" and "From:" has none of it.
_MAILERS = re.compile(rb"^(?:MIME-Version|Message-ID|Received|Content-Type|Content-Transfer-Encoding):", re.I | re.M)
_FLAT_ODF = re.compile(rb"\A(\xef\xbb\xbf)?\s*(<\?xml[^>]*>\s*)?(?>(?:<!--.*?-->\s*)*)<office:document\s", re.S)
# Readers by the content type of a package's main part: .docx, .docm, .dotx and so on differ in nothing else.
_OFFICE = re.compile(
    r"application/vnd\.(?:openxmlformats-officedocument\.)?"
    r"(?:(wordprocessingml|ms-word)|(presentationml|ms-powerpoint)|(spreadsheetml|ms-excel))\.[\w.]+\.main\+xml",
    re.I,
)
_OFFICE_READERS = ("word", "slides", "sheets")
OFFICE = (*_OFFICE_READERS, "odf", "rtf", "ole")  # kinds whose readers are in the room `office`
_NO_PACKAGE = {  # by content types, too
    "vnd.ms-excel.sheet.binary": "is a binary workbook (.xlsb): save it as .xlsx",
    "vnd.ms-visio": "is a drawing of Visio: save it as .pdf",
    "vnd.ms-package.xps": "is an XPS document: save it as .pdf",
}
_MEMBERS = {"word/document.xml": "word", "ppt/presentation.xml": "slides", "xl/workbook.xml": "sheets"}
_OPENDOCUMENT = re.compile(rb"application/vnd\.(oasis\.opendocument|sun\.xml)\.")
# As an export of chats begins: keys of ChatGPT, of Claude, of Telegram, of Slack and of Signal.
_CHAT_JSON = re.compile(
    r'\A\ufeff?\s*(?:\[\s*)?\{.*?(?:"(?:mapping|chat_messages|current_node|envelope|conversationId)"\s*:'
    r'|"type"\s*:\s*"(?:personal_chat|private_(?:super)?group|public_(?:super)?group|private_channel|public_channel|bot_chat'
    r'|saved_messages)"|"chats"\s*:\s*\{|"ts"\s*:\s*"\d{9,10}\.\d+"|"sender"\s*:.{0,2000}?"body"\s*:)'
    r'|\A\ufeff?\s*(?:\[\s*)?\{\s*"uuid"\s*:\s*"[^"]*"\s*,\s*"name"\s*:',
    re.S,
)


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
    if head[257:262] == b"ustar":
        return "tar"
    if head.startswith((b"\x1f\x8b", b"\xfd7zXZ\0")) or (head.startswith(b"BZh") and head[4:10] == b"1AY&SY"):
        return "compressed"
    if head.startswith(b"\xd0\xcf\x11\xe0"):
        return "ole"
    if head.lstrip()[:5] == b"{\\rtf":
        return "rtf"
    if _FLAT_ODF.match(head):
        return "odf"
    for begin, what in _NO_TEXT.items():
        if head.startswith(begin):
            raise NoTextError(f"holds no text: it is {what}")
    if _MBOX.match(head):
        return "mail"
    if not suffix.isalnum() and _MAIL.match(head):
        return "mail"
    if suffix == "txt" and _MAIL.match(head) and _MAILERS.search(re.split(rb"\r?\n\r?\n", head, maxsplit=1)[0]):
        return "mail"
    if suffix == "json":
        return "chats" if _CHAT_JSON.match(_text(head)) else "plain"
    if suffix in ("txt", ""):
        return "chats" if _NUMBER.match(head) and are_messages(_text(head).splitlines()[:40]) else "plain"
    if suffix not in _BY_SUFFIX and suffix in CONTAINERS and _HTML.match(head):
        return "html"
    return _BY_SUFFIX.get(suffix, "plain")


def kind_of_package(package: zipfile.ZipFile) -> str | None:
    """Return the name of the reader for a zip that is one document; None for an archive of files.

    NoTextError for a document of a kind that nobody reads.
    """
    names = {name.lower(): name for name in reversed(package.namelist())}

    def begin(name: str) -> bytes:
        try:
            with package.open(names[name]) as member:
                return member.read(1 << 20)
        except (KeyError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, OSError, EOFError):
            return b""

    stated = begin("mimetype")
    if _OPENDOCUMENT.match(stated) or _OPENDOCUMENT.search(begin("meta-inf/manifest.xml")):
        return "odf"
    if "meta-inf/container.xml" in names:
        return "epub"
    types = begin("[content_types].xml").replace(b"\0", b"").decode("latin-1")  # of UTF-16, too
    if found := _OFFICE.search(types):
        return _OFFICE_READERS[(found.lastindex or 1) - 1]
    for what, why in _NO_PACKAGE.items():
        if what in types:
            raise NoTextError(why)
    return next((kind for name, kind in _MEMBERS.items() if name in names), None)


# Endings of what is no text by itself: a text that bears one is told by its first words.
CONTAINERS = (
    *("pdf", "epub", "zip", "rtf", "doc", "dot", "xls", "xlt", "ppt", "pps", "pot"),
    *("docx", "docm", "dotx", "dotm", "xlsx", "xlsm", "xltx", "xltm", "xlsb"),
    *("pptx", "pptm", "ppsx", "ppsm", "potx", "potm"),
    *("odt", "ott", "odm", "ods", "ots", "odp", "otp", "odg", "otg", "fodt", "fods", "fodp", "fodg"),
)


def _text(head: bytes) -> str:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return head.decode("utf-16", "replace")
    return head.decode("utf-8", "replace").removeprefix("\ufeff")
