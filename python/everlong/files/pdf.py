"""PDF, by pypdf: a section a page, with what was filled in and noted on it. Files in it are read as their own."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import re
import unicodedata
import zlib
from collections.abc import Iterator
from typing import Any

from everlong.files import pdf_notes
from everlong.files.dates import seconds_of
from everlong.files.document import (
    Document,
    Inner,
    NoTextError,
    PassedOverError,
    Section,
    UnreadableFileError,
    filled,
    line_of,
    paragraph,
)
from everlong.files.pdf_notes import dictionary, entries

_FEW_WORDS = 20  # on a page that shows a large picture: a scanned page may have a stamp, or a number
_LARGE = 300_000  # pixels of a picture that may be a page
_MOST_CHECKED = 1 << 26  # bytes of a stream
_DEEPEST = 6  # forms within forms that are looked through for pictures
_NO_TEXT = "has no text that can be read"
_SHOW_TEXT = {b"Tj", b"TJ", b"'", b'"'}
_DRAW_NOTHING = _SHOW_TEXT | set(
    b"q Q cm w J j M d ri i gs m l c v y h re n W W* BT ET Tc Tw Tz TL Tf Tr Ts Td TD Tm T* d0 d1 CS cs SC SCN sc "
    b"scn G g RG rg K k MP DP BMC BDC EMC BX EX".split()
)
# Letters by their look: ligatures, and the forms of Hebrew and Arabic letters within words.
_BY_LOOK = re.compile("[\ufb00-\ufb06\ufb13-\ufb17\ufb1d-\ufd3d\ufd50-\ufdff\ufe70-\ufefc]")
_HYPHENATED = re.compile("\xad[ \t]*\n?[ \t]*")
_LIGATURE = re.compile(r"/([A-Za-z]+(?:_[A-Za-z]+)+|[A-Za-z]+)(?:\.\w+)?")  # a glyph's name: /f_f_i, /ff.alt


def read(data: bytes, suffix: str) -> Iterator[Document | Inner | PassedOverError]:
    """Yield the document and the files in it. A page that cannot be read, or is a picture, is passed over."""
    import pypdf
    from pypdf.errors import DependencyError, PyPdfError

    warned = _Warnings()
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise NoTextError("needs a password: save it without one")
        pages = len(reader.pages)
    except DependencyError as error:
        raise UnreadableFileError(f"is encrypted, and needs a package that is missing: {error}") from None
    except PyPdfError as error:
        raise NoTextError(f"is no whole PDF: {error}") from None
    sections: list[Section] = []
    without: list[tuple[int, str]] = []
    fields = pdf_notes.Fields(reader)
    for number in range(1, pages + 1):
        text, why = _page(reader, number - 1, warned)
        notes = fields.on_page(number)
        sections.append(paragraph(f"p. {number}", "\n\n".join(filter(None, (text.rstrip(), *notes)))))
        if why:
            without.append((number, why))
    sections.append(paragraph("form", "\n".join(fields.left())))
    files = list(pdf_notes.files(reader, fields.files))
    found = filled(sections)
    if not found and not files:
        why = f": {without[0][1]}" if len({why for _, why in without}) == 1 else ""
        raise NoTextError(f"has no text in its {pages} pages: they may be pictures; run OCR over it first{why}")
    about = _tried(lambda: reader.metadata, None)
    if found:
        yield Document(
            found,
            title=line_of(_tried(lambda: about.title, "")),
            author=line_of(_tried(lambda: about.author, "")),
            happened=seconds_of(_tried(lambda: about.creation_date or about.modification_date, None)),
        )
    yield from _passed_over(without)
    yield from fields.passed_over
    yield from files


def _tried(ask: Any, otherwise: Any) -> Any:
    """Return what a library is asked for; `otherwise` where the file's own objects do not allow it."""
    try:
        return ask()
    except MemoryError:
        raise
    except Exception:  # of a file that breaks every rule, a library raises anything
        return otherwise


def _passed_over(without: list[tuple[int, str]]) -> Iterator[PassedOverError]:
    """Yield pages that are not read. Those that follow each other for one reason are named together."""
    for (why, _), group in itertools.groupby(enumerate(without), lambda one: (one[1][1], one[1][0] - one[0])):
        numbers = [number for _, (number, _) in group]
        first, last = f"p. {numbers[0]}", f"p. {numbers[-1]}"
        yield PassedOverError(first if first == last else f"{first} to {last}", why)


def _page(reader: Any, index: int, warned: _Warnings) -> tuple[str, str]:
    """Return a page's text, and why it is not the whole; "" where it is, as far as can be told."""
    warned.told.clear()
    try:
        page = reader.pages[index]
        text = _as_letters(page.extract_text(), page)
    except MemoryError:
        raise
    except Exception as error:  # of a damaged page, a library raises anything
        return "", f"cannot be read: {type(error).__name__}: {error}"[:300]
    return text, _tried(lambda: _why_not_whole(page, text, warned.told), "" if text.strip() else _NO_TEXT)


def _why_not_whole(page: Any, text: str, warned: list[str]) -> str:
    contents = entries(page.get("/Contents"))
    streams = [one for one in contents if hasattr(one, "get_data")]
    if any(isinstance(one, dict) and one not in streams for one in contents):
        return "is damaged: a part of its content is none"
    if any("decompress" in told for told in warned) or any(map(_is_cut_short, streams)):
        return "is damaged: its text may be cut short"
    words = len(text.split())
    if words < _FEW_WORDS:
        pixels = _pixels(dictionary(page.get("/Resources")), _DEEPEST)
        if pixels >= (_LARGE if words else 1):
            return "shows a picture, which may be a scanned page: run OCR over it"
    return "" if words or _is_blank(page) else _NO_TEXT


def _is_blank(page: Any) -> bool:
    """Whether a page without text shows nothing else: its content draws nothing, or spaces, and makes sense."""
    content = page.get_contents()
    if content is None or not content.get_data().strip():
        return True
    operators = {operator for _, operator in content.operations}
    return operators <= _DRAW_NOTHING and (bool(operators & _SHOW_TEXT) or b"(" not in content.get_data())


def _is_cut_short(stream: Any) -> bool:
    """Whether a compressed stream ends before its end, or is damaged. pypdf then gives what it can."""
    if stream.get("/Filter") not in ("/FlateDecode", ["/FlateDecode"]):
        return False
    unpacker, rest, size = zlib.decompressobj(), getattr(stream, "_data", b""), 0
    try:
        while rest and not unpacker.eof and size < _MOST_CHECKED:
            size += len(unpacker.decompress(rest, 1 << 20))
            rest = unpacker.unconsumed_tail
    except zlib.error:
        return True
    return not unpacker.eof and size < _MOST_CHECKED


def _pixels(resources: Any, deepest: int) -> int:
    """Return how many pixels the largest picture has that a page, or a form on it, may show."""
    largest = 0
    seen: set[int] = set()  # forms may lie within themselves
    waiting = [(resources, deepest)]
    while waiting:
        resources, left = waiting.pop()
        for one in map(dictionary, dictionary(resources.get("/XObject")).values()):
            if id(one) in seen:
                continue
            seen.add(id(one))
            if one.get("/Subtype") == "/Image":
                largest = max(largest, int(one.get("/Width", 1)) * int(one.get("/Height", 1)))
            elif left and one.get("/Subtype") == "/Form":
                waiting.append((dictionary(one.get("/Resources")), left - 1))
    return largest


def _as_letters(text: str, page: Any) -> str:
    """Return text by its letters, where it has their looks: ligatures, and hyphens that stand only where lines end."""
    if "/" in text:
        for name, letters in _named_ligatures(page).items():
            text = text.replace(name, letters)
    if text.isascii():
        return text
    text = _HYPHENATED.sub("", text) if "\xad" in text else text
    return _BY_LOOK.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)


def _named_ligatures(page: Any) -> dict[str, str]:
    """Return names of glyphs that pypdf gives in place of their letters, the longest first."""
    from pypdf._codecs.adobe_glyphs import adobe_glyphs

    names: dict[str, str] = {}
    with contextlib.suppress(Exception):
        for font in map(dictionary, dictionary(dictionary(page.get("/Resources")).get("/Font")).values()):
            for name in entries(dictionary(font.get("/Encoding")).get("/Differences")):
                if isinstance(name, str) and name not in adobe_glyphs and (found := _LIGATURE.fullmatch(name)):
                    parts = [adobe_glyphs.get(f"/{part}", "") for part in found[1].split("_")]
                    if all(parts):
                        names[str(name)] = "".join(parts)
    return dict(sorted(names.items(), key=lambda one: -len(one[0])))


class _Warnings(logging.Handler):
    """What pypdf warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[str] = []
        logger = logging.getLogger("pypdf")
        logger.addHandler(self)
        logger.propagate = False  # nobody reads what a child process says

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.told) < 100:
            self.told.append(record.getMessage())
