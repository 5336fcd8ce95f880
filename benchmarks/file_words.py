"""What the raw parts of a file say, for `benchmarks/files.py`: a count of its own, which shares no code with everlong.

Each kind of file is opened by Python's own library or by lxml, a web page by html5lib, and a PDF by pypdfium2 and
pdfminer.six: a word of a page counts where both see it, since each of them guesses where letters are glyphs without a
name.
"""

from __future__ import annotations

import base64
import bisect
import codecs
import csv
import dataclasses
import datetime
import email
import email.policy
import html
import io
import json
import mailbox
import pathlib
import posixpath
import re
import tempfile
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import html5lib
import pypdfium2
from lxml import etree
from pdfminer.converter import TextConverter
from pdfminer.layout import LAParams
from pdfminer.pdfinterp import PDFPageInterpreter, PDFResourceManager
from pdfminer.pdfpage import PDFPage

_WORD = re.compile(r"\d+|[^\W\d_]+")  # "12th" is two: what a superscript is joined by differs
_UNSEEN = re.compile(r"[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\ue000-\uf8ff\ufffd\x1b]")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MOST_DEEP: Final = 3  # files within files
_INLINE = frozenset(
    {
        *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i"),
        *("ins", "kbd", "label", "mark", "nobr", "q", "ruby", "s", "samp", "small", "span", "strike"),
        *("strong", "sub", "sup", "time", "tt", "u", "var", "wbr"),
    }
)
_NO_TEXT_OF_A_PAGE = ("script", "style")
_APART = ("noscript", "template", "svg", "iframe", "object", "title", "textarea", "select", "math")
_OFFICE = {"docx": "word/", "pptx": "ppt/", "xlsx": "xl/"}
_CHAT_JSON = re.compile(
    rb'\s*[\[{].{,8000}?("(mapping|chat_messages|client_msg_id|is_archived)"\s*:|"type"\s*:\s*"personal_chat")', re.S
)
_BY_ENDING = {
    **dict.fromkeys(("docx", "docm", "dotx"), "docx"),
    **dict.fromkeys(("pptx", "pptm", "ppsx", "potx"), "pptx"),
    **dict.fromkeys(("xlsx", "xlsm", "xltx"), "xlsx"),
    **dict.fromkeys(("odt", "ods", "odp", "ott"), "odf"),
    **dict.fromkeys(("html", "htm", "xhtml"), "html"),
    **dict.fromkeys(("csv", "tsv"), "csv"),
    **dict.fromkeys(("srt", "vtt"), "subtitles"),
    **dict.fromkeys(("doc", "xls", "ppt", "msg", "rtf", "xlsb"), "old"),
    **{kind: kind for kind in ("pdf", "epub", "mbox", "zip")},
    "ipynb": "notebook",
    "eml": "mail",
}


@dataclasses.dataclass(frozen=True)
class Part:
    """What one part of a file says."""

    names: tuple[str, ...]  # what a reader may call it that passes it over: "word/header1.xml", "header", "p. 3"
    text: str
    once: bool = False  # a title: it is read where it stands anywhere, in a citation, too
    deleted: bool = False  # struck out by its author: counted apart
    either: tuple[str, ...] = ()  # other ways to write the text: a date, a number


def kind_of(name: str, data: bytes) -> str:
    """Return the kind of a file, under which it is counted."""
    kind = _BY_ENDING.get(pathlib.PurePath(name).suffix.lower().removeprefix("."), "plain")
    if name.lower().endswith(".json") and _CHAT_JSON.match(data):
        return "chats"
    if kind == "plain" and name.lower().endswith((".txt", ".log")) and len(_CHAT_LINE.findall(_text(data[:4000]))) > 1:
        return "chats"
    return kind


def words_of(text: str) -> list[str]:
    """Return the words of a text, in its order, in one spelling of ligatures and accents, in small letters."""
    told = unicodedata.normalize("NFKC", _UNSEEN.sub("", text)).casefold()
    if not told.isascii():  # marks that stand alone, as vowels of Devanagari, are no gap
        told = "".join(letter for letter in told if unicodedata.category(letter)[0] != "M")
    return _WORD.findall(told)


def parts_of(name: str, data: bytes) -> list[Part]:
    """Return what the parts of a file say. Raises a library's own error where it cannot be opened."""
    return list(_COUNTS[kind_of(name, data)](name, data, 0))


# ---- plain text, tables, subtitles, chats, notebooks


def _text(data: bytes) -> str:
    """Return bytes as text. Of what is not Unicode, only the ASCII is sure: the rest becomes U+FFFD."""
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:  # a word with a letter that may be any is none
        return re.sub(r"\w*[\x80-\xff][\w\x80-\xff]*", " ", data.decode("latin-1"))


def _plain(name: str, data: bytes, depth: int) -> Iterator[Part]:
    yield Part((), _text(data))


def _csv(name: str, data: bytes, depth: int) -> Iterator[Part]:
    text = _text(data)
    head = text.split("\n", 1)[0]
    mark = "\t" if name.lower().endswith(".tsv") else max(",;\t|", key=head.count)
    csv.field_size_limit(1 << 28)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=mark))
    except csv.Error:
        rows = [[text]]
    for number, row in enumerate(rows, 1):
        yield Part((f"row {number}",), "\n".join(row))


_TIME_LINE = re.compile(r"^[\d:.,\s-]*-->.*$")  # of a broken one, too: it is no text


def _subtitles(name: str, data: bytes, depth: int) -> Iterator[Part]:
    """All lines but numbers and names of cues, times, and the blocks of WebVTT that are not shown."""
    lines = re.split(r"\r\n|\r|\n", _text(data))
    vtt = lines[0].startswith("WEBVTT")
    told: list[str] = []
    hidden = vtt
    started = False
    for at, line in enumerate(lines):
        following = lines[at + 1] if at + 1 < len(lines) else ""
        if _TIME_LINE.match(line):
            hidden, started = False, True
        elif not line.strip():
            hidden = False
        elif vtt and re.match(r"(NOTE|STYLE|REGION)\b", line) and not (at and lines[at - 1].strip()):
            hidden = True
        elif _TIME_LINE.match(following) and (line.strip().isdigit() or not (at and lines[at - 1].strip())):
            continue  # the cue's number, or its name
        elif started and not hidden:
            shown = re.sub(r"\{\\[^}]*\}", "", line)
            shown = re.sub(r"<v(?:\.[^\s>]*)?\s+([^>]*)>", r" \1 ", shown)
            shown = re.sub(r"</?[a-zA-Z][^<>]*>|</?>|<\d[\d:.]*>", " ", shown)
            told.append(html.unescape(shown) if vtt else shown)
    yield Part((), "\n".join(told))


_CHAT_LINE = re.compile(
    r"^[\u200e\ufeff]?\[?\d{1,4}[./-]\d{1,2}[./-]\d{1,4},?\s+\d{1,2}[:.]\d{2}(?:[:.]\d{2})?\s*(?:[AaPp]\.?\s?[Mm]\.?)?(?:\]|\s+-)\s",
    re.M,
)
_CHAT_TEXTS = frozenset(("parts", "text", "title", "name", "extracted_content", "file_name", "result", "content"))
_CHAT_MACHINERY = frozenset(
    ("metadata", "author", "id", "parent", "children", "content_type", "asset_pointer", "text_entities")
)


def _chats(name: str, data: bytes, depth: int) -> Iterator[Part]:
    if not name.lower().endswith(".json"):  # WhatsApp's, whose times are read as places
        yield Part((), _CHAT_LINE.sub("", _text(data)))
        return
    told: list[str] = []

    def walk(found: Any, key: str) -> None:
        if isinstance(found, str):
            if key in _CHAT_TEXTS:
                told.append(found)
        elif isinstance(found, list):
            for one in found:
                walk(one, key)
        elif isinstance(found, dict):
            for inner, one in found.items():
                if inner not in _CHAT_MACHINERY:
                    walk(one, inner)

    walk(json.loads(_text(data)), "")
    yield Part((), "\n".join(told))


def _notebook(name: str, data: bytes, depth: int) -> Iterator[Part]:
    found = json.loads(_text(data))
    cells = found.get("cells") or [cell for sheet in found.get("worksheets", ()) for cell in sheet.get("cells", ())]
    for number, cell in enumerate(cells, 1):
        place = f"cell {number}"
        yield Part((place,), _joined(cell.get("source") or cell.get("input")))
        for output in cell.get("outputs") or ():
            yield Part((place, "output"), _output(output))


def _output(output: dict[str, Any]) -> str:
    """Return the text of an output: of several forms of one thing, the plain one, where that is no stand-in."""
    if "ename" in output:
        traceback = "\n".join(map(str, output.get("traceback") or ()))
        return _ANSI.sub("", traceback or f"{output['ename']}: {output.get('evalue', '')}")
    forms = output.get("data") or output
    plain = _joined(output.get("text") or forms.get("text/plain"))
    if plain and not re.fullmatch(r"\s*<[\w.]+ object( at \w+)?>|\s*<Figure .*>", plain):
        return _ANSI.sub("", plain)
    for form in ("text/markdown", "text/latex", "text/html", "html", "latex"):
        if form in forms:
            told = _joined(forms[form])
            return "\n".join(part.text for part in _page(told.encode())) if "html" in form else told
    return _ANSI.sub("", plain)


def _joined(lines: Any) -> str:
    return "".join(map(str, lines)) if isinstance(lines, list) else str(lines or "")


# ---- web pages and e-books


def _html(name: str, data: bytes, depth: int) -> Iterator[Part]:
    yield from _page(data)


def _page(data: bytes, names: tuple[str, ...] = (), charset: str | None = None) -> Iterator[Part]:
    """Yield every text of a page but scripts and styles, and apart what browsers show elsewhere, or not at all."""
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    if b"\0" in data:  # UTF-16 or UTF-32, which html5lib does not know without a mark
        data = _text(data).encode()
        if b"\0" in data:
            raise ValueError("it has zero bytes, and no mark of its encoding")
    try:
        tree = parser.parse(data.decode("utf-8-sig"), scripting=False)
    except UnicodeDecodeError:
        tree = parser.parse(data, scripting=False, transport_encoding=charset, useChardet=False)
        if parser.tokenizer.stream.charEncoding[1] == "tentative" and b"charset" not in data[:4096].lower():
            tree = parser.parse(_text(data), scripting=False)
    told: dict[str, list[str]] = {"": []}
    waiting: list[tuple[Any, str, str]] = [(tree, "", "open")]
    while waiting:
        node, apart, what = waiting.pop()
        if what == "tail":
            told[apart].append(node)
            continue
        tag = node.tag.rpartition("}")[2] if isinstance(node.tag, str) else None
        if tag is None or tag in _NO_TEXT_OF_A_PAGE:
            continue
        inner = apart or (tag if tag in _APART else "hidden" if _is_hidden(node) else "")
        pieces = told.setdefault(inner, [])
        if tag not in _INLINE:
            pieces.append("\n")
            waiting.append(("\n", inner, "tail"))
        pieces.append(node.text or "")
        for child in reversed(node):
            waiting.append((child.tail or "", inner, "tail"))
            waiting.append((child, inner, "open"))
    for apart, pieces in told.items():
        yield Part((*names, *((apart,) if apart else ())), "".join(pieces), once=apart == "title")


def _is_hidden(node: Any) -> bool:
    return node.get("hidden") is not None or bool(re.search(r"display\s*:\s*none", node.get("style") or "", re.I))


def _epub(name: str, data: bytes, depth: int) -> Iterator[Part]:
    with zipfile.ZipFile(io.BytesIO(data)) as book:
        for member in book.namelist():
            if member.lower().endswith((".xhtml", ".html", ".htm")):
                names = (member, posixpath.basename(member))
                yield from _xhtml(book.read(member), names)
            elif member.lower().endswith(".opf"):
                for about in _tree(book.read(member)).iterfind(".//{*}metadata/*"):
                    if _local(about) in ("title", "creator"):
                        yield Part((member,), about.text or "", once=True)


def _xhtml(data: bytes, names: tuple[str, ...]) -> Iterator[Part]:
    """A chapter is XML, where <title/> ends at once; one that is not well-formed is read as a page."""
    try:
        tree = etree.fromstring(data, etree.XMLParser(resolve_entities=True, no_network=True, load_dtd=False))
        if any(isinstance(node, etree._Entity) for node in tree.iter(etree.Entity)):
            raise ValueError("it has references of HTML")
    except (etree.XMLSyntaxError, ValueError):
        yield from _page(data, names)
        return
    told: dict[str, list[str]] = {"": []}

    def walk(node: Any, apart: str) -> None:
        if not isinstance(node.tag, str) or _local(node) in _NO_TEXT_OF_A_PAGE:
            return
        inner = apart or (_local(node) if _local(node) in _APART else "hidden" if _is_hidden(node) else "")
        gap = "" if _local(node) in _INLINE else "\n"
        pieces = told.setdefault(inner, [])
        pieces.append(gap + (node.text or ""))
        for child in node:
            walk(child, inner)
            pieces.append(child.tail or "")
        pieces.append(gap)

    walk(tree, "")
    for apart, pieces in told.items():
        yield Part((*names, *((apart,) if apart else ())), "".join(pieces), once=apart == "title")


# ---- Office


def _tree(data: bytes) -> Any:
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, recover=True, huge_tree=True)
    found = etree.fromstring(data, parser)
    return etree.Element("nothing") if found is None else found


def _local(node: Any) -> str:
    return str(node.tag).rpartition("}")[2]


def _office(name: str, data: bytes, depth: int) -> Iterator[Part]:
    """Yield every text of every part of a DOCX or a PPTX, and of a XLSX but for its cells."""
    with zipfile.ZipFile(io.BytesIO(data)) as package:
        members = package.namelist()
        charted = _charted(package)
        smart_art = {posixpath.dirname(member) for member in members if re.search(r"diagrams/data\d*\.xml$", member)}
        for member in members:
            base = posixpath.basename(member)
            names = (member, base, re.sub(r"\d*\.xml$", "", base))
            if member.lower().startswith("docprops/core"):
                for about in _tree(package.read(member)):
                    if _local(about) in ("title", "creator"):
                        yield Part(names, about.text or "", once=True)
            elif "/embeddings/" in member:
                if depth < _MOST_DEEP and member not in charted:
                    yield from _inner(base, names, package.read(member), depth)
            elif member.endswith((".html", ".htm", ".mht", ".xhtml")):
                yield from _page(package.read(member), names)
            elif member.startswith("xl/worksheets/") or member == "xl/sharedStrings.xml":
                continue
            elif member.startswith("xl/pivot") or member.startswith("xl/charts/"):
                continue  # they say again what cells say, but for a chart's own titles
            elif base.startswith("drawing") and posixpath.dirname(member) in smart_art:
                continue  # the same words as the data
            elif base.endswith(".xml") and member.startswith(tuple(_OFFICE.values())):
                shown = not base.startswith(("slideLayout", "slideMaster", "notesMaster", "handoutMaster"))
                tree = _tree(package.read(member))
                for value in tree.iterfind(".//{*}numCache/{*}pt/{*}v"):
                    told, value.text = value.text or "", ""
                    yield Part(names, told, either=tuple(_written(told, datetime.datetime(1899, 12, 30))))
                live, deleted = _texts(tree, prompts=shown)
                yield Part(names, live)
                if deleted.strip():
                    yield Part((*names, "deleted"), deleted, deleted=True)


def _charted(package: zipfile.ZipFile) -> set[str]:
    """Return the workbooks that charts keep their values in: a chart says them itself."""
    found = set()
    for member in package.namelist():
        if re.search(r"charts/_rels/[^/]*\.rels$", member):
            for one in _tree(package.read(member)):
                found.add(posixpath.normpath(posixpath.join(member, "../..", one.get("Target") or "")))
    return found


_TEXTS = frozenset(("t", "v", "text"))
_BREAKS = frozenset(
    ("rt", "rubyBase", "tab", "br", "cr", "p", "tc", "pt", "comment", "txbxContent", "oMath", "e", "num", "den", "sup")
)


def _texts(root: Any, *, prompts: bool) -> tuple[str, str]:
    """Return the text of a part, and what is deleted of it. Without `prompts`, not what a placeholder asks for."""
    live: list[str] = []
    deleted: list[str] = []

    def walk(node: Any, into: list[str]) -> None:
        tag = _local(node)
        if tag == "delText":
            deleted.append(node.text or "")
            return
        if tag in ("instrText", "delInstrText") or (tag == "f" and "chart" in str(node.tag)):
            return
        if tag == "Fallback" and any(_local(one) == "Choice" for one in node.getparent()):
            return  # the same for older programs
        if tag == "fld" and "slidenum" in (node.get("type") or ""):
            return
        if tag == "rPh":  # how it is pronounced
            return
        if tag == "sp" and not prompts and any(_local(one) == "ph" for one in node.iter("{*}ph")):
            return
        if tag in ("del", "moveFrom"):
            into = deleted
        if tag == "noBreakHyphen":
            into.append("-")
        if tag in _BREAKS:
            into.append("\n")
        if tag in _TEXTS and len(node) == 0:
            into.append((node.text or "") + ("\n" if tag == "v" else ""))
        for child in node:
            if isinstance(child.tag, str):
                walk(child, into)
        if tag in _BREAKS:
            into.append("\n")

    walk(root, live)
    return "".join(live), "\n".join(deleted)


def _xlsx(name: str, data: bytes, depth: int) -> Iterator[Part]:
    yield from _office(name, data, depth)
    with zipfile.ZipFile(io.BytesIO(data)) as package:
        members = package.namelist()
        shared: list[str] = []
        for member in members:
            if member.lower() == "xl/sharedstrings.xml":
                shared = [_texts(one, prompts=True)[0] for one in _tree(package.read(member)).iterfind("{*}si")]
        book = next(member for member in members if member.lower().endswith("xl/workbook.xml"))
        tree = _tree(package.read(book))
        epoch = datetime.datetime(1904, 1, 1) if _is_1904(tree) else datetime.datetime(1899, 12, 30)
        titles = _titles(package, tree)
        for member in members:
            if re.match(r"xl/worksheets/[^/]*\.xml$", member):
                title = titles.get(member, "")
                cells = list(_cells(_tree(package.read(member)), (member, *filter(None, (title,))), shared, epoch))
                yield from cells
                if any(cell.text.strip() for cell in cells):
                    yield Part((member,), title, once=True)


def _is_1904(book: Any) -> bool:
    about = book.find("{*}workbookPr")
    return about is not None and about.get("date1904") in ("1", "true")


def _titles(package: zipfile.ZipFile, book: Any) -> dict[str, str]:
    """Return the names of the sheets by the members that hold them."""
    related = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
    names = {one.get(related): one.get("name") or "" for one in book.iterfind(".//{*}sheet")}
    titles: dict[str, str] = {}
    if "xl/_rels/workbook.xml.rels" in package.namelist():
        for one in _tree(package.read("xl/_rels/workbook.xml.rels")):
            target = one.get("Target") or ""
            member = target.removeprefix("/") if target.startswith("/") else posixpath.normpath(f"xl/{target}")
            titles[member] = names.get(one.get("Id"), "")
    return titles


def _cells(sheet: Any, names: tuple[str, ...], shared: list[str], epoch: datetime.datetime) -> Iterator[Part]:
    for cell in sheet.iterfind(".//{*}sheetData/{*}row/{*}c"):
        place = (*names, cell.get("r") or "")
        kind, value, formula = cell.get("t") or "n", cell.find("{*}v"), cell.find("{*}f")
        told = "" if value is None else value.text or ""
        if kind == "s":
            yield Part(place, shared[int(told)] if told.isdigit() and int(told) < len(shared) else "")
        elif kind == "inlineStr":
            yield Part(place, _texts(cell, prompts=True)[0])
        elif kind in ("str", "d"):
            yield Part(place, told)
        elif kind == "b":
            yield Part(place, told, either=("TRUE", "FALSE"))
        elif told:
            yield Part(place, told, either=tuple(_written(told, epoch)))
        elif formula is not None and formula.text:
            yield Part((*place, "formula", "formulas"), formula.text)
    for note in sheet.iterfind("{*}headerFooter/*"):  # "&L&"Arial,Bold"&12 words &P"
        yield Part((*names, _local(note), "header"), re.sub(r'&"[^"]*"|&\d+|&K[0-9A-F]{6}|&.', " ", note.text or ""))


def _written(number: str, epoch: datetime.datetime) -> Iterator[str]:
    """Yield ways to write a number: rounded, as a percentage, as a date."""
    try:
        value = float(number)
    except ValueError:
        return
    for scaled in (value, abs(value), *((value * 100,) if abs(value) < 100 and value != int(value) else ())):
        yield f"{scaled:g}"
        yield f"{scaled:.15g}"
        yield repr(scaled)
        for places in range(8):
            yield f"{scaled:.{places}f}"
            yield f"{scaled:,.{places}f}"
            yield f"{scaled:.{places}e}"
    try:
        moment = epoch + datetime.timedelta(days=value)
    except OverflowError:
        return
    for half in (0, 500_000):  # a clock that is rounded
        at = moment + datetime.timedelta(microseconds=half)
        yield f"{at:%Y %m %d}"
        yield f"{at:%H %M}"
        yield f"{at:%I %M}"
        yield f"{at.day} {at.month}"
        yield f"{at:%B}"
        yield f"{at:%b}"


def _odf(name: str, data: bytes, depth: int) -> Iterator[Part]:
    with zipfile.ZipFile(io.BytesIO(data)) as package:
        for member in package.namelist():
            base = posixpath.basename(member)
            if base in ("content.xml", "styles.xml"):
                live: list[str] = []
                gone: list[str] = []
                _odf_text(_tree(package.read(member)), live, gone, within=False)
                yield Part((member, *(() if base == "content.xml" else ("header", "footer"))), "".join(live))
                yield Part((member, "deleted"), "".join(gone), deleted=True)
            elif member == "meta.xml":
                for about in _tree(package.read(member)).iter("{http://purl.org/dc/elements/1.1/}title"):
                    yield Part((member,), about.text or "", once=True)


_ODF_FIELDS = frozenset(("page-number", "page-count", "time", "sheet-name", "file-name"))


def _in_master(node: Any) -> bool:
    return any(above.tag.endswith("master-page") for above in node.iterancestors())


def _odf_text(node: Any, live: list[str], gone: list[str], *, within: bool) -> None:
    if not isinstance(node.tag, str):
        return
    tag = _local(node)
    if tag == "date" and "dc/elements" in node.tag:
        return
    if tag in _ODF_FIELDS or (tag == "notes" and node.getparent().tag.endswith("master-page")):
        return
    if any(key.endswith("}class") and "presentation" in key for key in node.attrib) and _in_master(node):
        return  # what a placeholder asks for
    if tag == "tracked-changes":
        live = gone
    within = within or (tag in ("p", "h") and "text:1.0" in node.tag)
    if tag in ("p", "h", "tab", "s", "line-break", "annotation", "frame", "creator"):
        live.append(" " if tag == "s" else "\n")
    if within:
        live.append(node.text or "")
    for child in node:
        _odf_text(child, live, gone, within=within)
        if within:
            live.append(child.tail or "")
    if tag in ("p", "h", "annotation", "frame", "creator"):
        live.append("\n")


# ---- PDF, mail, archives


def _pdf(name: str, data: bytes, depth: int) -> Iterator[Part]:
    with pypdfium2.PdfDocument(data) as document:
        pages = [page.get_textpage().get_text_bounded() for page in document]
    seconds = _by_pdfminer(data, len(pages))
    for number, text in enumerate(pages):
        if seconds is not None:
            missing = Comparison.of([Part((), text)], seconds[number], ()).silent
            text = " ".join((Counter(words_of(text)) - missing).elements())
        yield Part((f"p. {number + 1}", f"page {number + 1}"), text)


def _by_pdfminer(data: bytes, pages: int) -> list[str] | None:
    """Return what pdfminer sees on each page, or None where it cannot read the file."""
    told: list[str] = []
    try:
        for page in PDFPage.get_pages(io.BytesIO(data), check_extractable=False):
            out, resources = io.StringIO(), PDFResourceManager()
            converter = TextConverter(resources, out, laparams=LAParams(all_texts=True))
            PDFPageInterpreter(resources, converter).process_page(page)
            told.append(out.getvalue())
    except Exception:  # its own, of any type: a second opinion that is not to be had
        return None
    return told if len(told) == pages else None


def _mail(name: str, data: bytes, depth: int) -> Iterator[Part]:
    message = email.message_from_bytes(data, policy=email.policy.default)
    yield from _message(message, (), depth)


def _mbox(name: str, data: bytes, depth: int) -> Iterator[Part]:
    with tempfile.NamedTemporaryFile(suffix=".mbox") as file:
        file.write(data)
        file.flush()
        box = mailbox.mbox(file.name, create=False)
        for number, key in enumerate(box.keys(), 1):
            message = email.message_from_bytes(box.get_bytes(key), policy=email.policy.default)
            yield from _message(message, (f"message {number}",), depth)


def _message(message: Any, names: tuple[str, ...], depth: int) -> Iterator[Part]:
    for header in ("From", "To", "Cc", "Subject"):
        try:
            told = str(message.get(header) or "")
        except Exception:  # a header that the standard library cannot parse
            told = ""
        yield Part(names, told[:100], once=True)
    yield from _body(message, names, depth)


def _body(part: Any, names: tuple[str, ...], depth: int) -> Iterator[Part]:
    kind = part.get_content_type()
    if kind == "multipart/alternative":
        yield from _alternative([list(_body(one, names, depth)) for one in part.iter_parts()])
    elif part.is_multipart() and kind.startswith("multipart/"):
        for one in part.iter_parts():
            yield from _body(one, names, depth)
    elif kind == "message/rfc822" and part.is_multipart():
        for one in part.get_payload():
            if str(part.get("Content-Transfer-Encoding")).strip().lower() == "base64":  # against the rules (RFC 2046)
                one = email.message_from_bytes(base64.b64decode(one.as_bytes()), policy=email.policy.default)
            yield from _message(one, (*names, kind), depth)
    else:
        payload = part.get_payload(decode=True) or b""
        try:
            named = part.get_filename() or ""
        except Exception:  # a header that the standard library cannot parse
            named = ""
        here = (*names, kind, *((named,) if named else ()))
        charset = part.get_content_charset()
        if kind == "text/html":
            yield from _page(payload, here, charset)
        elif kind.startswith("text/") and not named:
            yield Part(here, _stated(payload, charset))
        elif named and depth < _MOST_DEEP:
            yield from _inner(named, here, payload, depth)


def _alternative(forms: list[list[Part]]) -> list[Part]:
    """Return the form of a text that says it: the first one, unless a later one has more than twice its words."""
    sizes = [sum(len(words_of(part.text)) for part in form) for form in forms]
    return next((form for form, size in zip(forms, sizes, strict=True) if size * 2 >= max(sizes)), [])


def _stated(payload: bytes, charset: str | None) -> str:
    try:
        return payload.decode(charset or "utf-8")
    except (UnicodeDecodeError, LookupError):
        return _text(payload)


def _inner(name: str, names: tuple[str, ...], data: bytes, depth: int) -> Iterator[Part]:
    """Yield what a file within a file says. One that cannot be opened says nothing that could be lost."""
    kind = kind_of(name, data)
    if kind == "plain" and not _is_text(data):
        return
    try:
        found = list(_COUNTS[kind](name, data, depth + 1))
    except Exception:  # a library's own, of bytes that are broken or of another kind
        return
    for part in found:
        yield dataclasses.replace(part, names=(*names, *part.names))


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode("utf-8")
    except UnicodeDecodeError:
        return False


def _zip(name: str, data: bytes, depth: int) -> Iterator[Part]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.infolist():
            if not member.is_dir() and "__MACOSX" not in member.filename and depth < _MOST_DEEP:
                names = (member.filename, posixpath.basename(member.filename))
                try:
                    inner = archive.read(member)
                except Exception:  # encrypted, or compressed in some other way: nothing is known of its words
                    continue
                yield from _inner(member.filename, names, inner, depth)


def _old(name: str, data: bytes, depth: int) -> Iterator[Part]:
    """A file of an old Office: nothing counts its words."""
    yield from ()


_COUNTS = {
    "plain": _plain,
    "csv": _csv,
    "subtitles": _subtitles,
    "chats": _chats,
    "notebook": _notebook,
    "html": _html,
    "epub": _epub,
    "docx": _office,
    "pptx": _office,
    "xlsx": _xlsx,
    "odf": _odf,
    "pdf": _pdf,
    "mail": _mail,
    "mbox": _mbox,
    "zip": _zip,
    "old": _old,
}
KINDS: Final = tuple(_COUNTS)


# ---- comparing


def without_labels(text: str, parts: Iterable[Part]) -> str:
    """Return rows without the names of columns before their values, as "name: ": they are read once a row.

    A cell that is lost would else be found in them.
    """
    texts = {line.strip() for part in parts for line in part.text.split("\n")}
    own = {piece for text in texts if ": " in text for piece in text.split(", ")}
    lines = []
    for line in text.split("\n"):
        pieces = line.split(", ")
        for at, piece in enumerate(pieces):
            label, colon, value = piece.partition(": ")
            if colon and label in texts and piece not in own:
                pieces[at] = value
        lines.append(", ".join(pieces))
    return "\n".join(lines)


_NUMBER = re.compile(r"-?\d[\d.,]*(?:e[+-]?\d+)?", re.I)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The words of a file beside those that were read."""

    there: int
    read: int
    named: int  # words of parts that the reader says it passed over
    silent: Counter[str]  # words that are lost, and nothing says so
    where: dict[str, str]  # the part of each of them
    deleted: int  # words that their author deleted, and that are not read
    more: int  # words that are read more often than they stand there

    @staticmethod
    def of(parts: Iterable[Part], text: str, passed_over: Iterable[tuple[str, str]], cited: str = "") -> Comparison:
        """Compare parts with the text that was read, what was passed over (name and why), and places and titles."""
        parts = list(parts)
        order = words_of(text)
        left = _Left(order)
        numbers = Counter(found.rstrip(".,") for found in _NUMBER.findall(text))
        body = [part for part in parts if not (part.once or part.deleted or part.either)]
        needed = [(part, words_of(part.text)) for part in body]
        lost = left.without(Counter(word for _, words in needed for word in words), whole=True)
        there = sum(len(words) for _, words in needed)
        for part in sorted((part for part in parts if part.either), key=lambda part: -len(part.text)):
            there += 1
            # The longest form first: a rounded one may be another cell's own number. A number is one piece, as "0.29",
            # which "0" and "29%" do not make up; a date may be written in any way.
            forms = sorted({part.text, *part.either}, key=len, reverse=True)
            taken = any(
                numbers[form] > 0 and left.takes(words_of(form)) and not numbers.subtract([form]) for form in forms
            )
            if not taken and not any(left.takes(words_of(form)) for form in forms if not _NUMBER.fullmatch(form)):
                needed.append((part, words_of(part.text)))
                lost.update(words_of(part.text))
        lost = left.without(lost)
        seen = set(order) | set(words_of(cited))
        for part in parts:
            if part.once:
                missing = [word for word in words_of(part.text) if word not in seen and not left.holds(word)]
                needed.append((part, missing))
                lost.update(missing)
        deleted = Counter(word for part in parts if part.deleted for word in words_of(part.text))
        gone = sum(left.without(deleted).values())
        named, where = _shared_out(needed, lost, [f"{name} {why}" for name, why in passed_over])
        return Comparison(there, len(order), named, +lost, where, gone, left.more())


_MOST_SEARCHED: Final = 500_000_000  # letters, for all words of a file that are cut otherwise


class _Left:
    """Words that were read, and for which no word of the file has been found yet."""

    def __init__(self, order: list[str]) -> None:
        self._order = order
        self._left = Counter(order)
        self._all = ""
        self._begins: list[int] = []
        self._budget = _MOST_SEARCHED
        self._open: dict[int, list[bool]] = {}  # letters of a word that others stand in for, by its number

    def more(self) -> int:
        return sum(self._left.values())

    def takes(self, words: list[str]) -> bool:
        """Take these words, if they are left."""
        if not words or any(count > self._left[word] for word, count in Counter(words).items()):
            return False
        self._left.subtract(words)
        return True

    def holds(self, word: str) -> bool:
        return word in self._squeezed()

    def without(self, needed: Counter[str], *, whole: bool = False) -> Counter[str]:
        """Take what is needed, and return what is not left. Unless `whole`, also what is cut into words otherwise.

        Each letter that was read stands for one letter at most.
        """
        lost = needed - self._left
        self._left = self._left - needed
        if whole:
            return lost
        found: Counter[str] = Counter()
        for word in sorted(lost, key=len, reverse=True):
            for _ in range(0 if len(word) < 3 and word.isdigit() else lost[word]):
                if not self._takes_letters(word):
                    break
                found[word] += 1
        return lost - found

    def _squeezed(self) -> str:
        if not self._all:
            self._all = "".join(self._order)
            at = 0
            for word in self._order:
                self._begins.append(at)
                at += len(word)
        return self._all

    def _takes_letters(self, word: str) -> bool:
        text, at = self._squeezed(), -1
        for _ in range(300 if self._budget > 0 else 0):  # places that are looked at
            before, at = at, text.find(word, at + 1)
            self._budget -= (len(text) if at < 0 else at) - before
            if at < 0 or self._budget < 0:
                return False
            first = bisect.bisect_right(self._begins, at) - 1
            last = bisect.bisect_right(self._begins, at + len(word) - 1) - 1
            if len(word) < 3 and at != self._begins[first] and at + len(word) != self._end(last):
                continue  # a letter within any word
            if self._opened(range(first, last + 1), at, at + len(word)):
                return True
        return False

    def _end(self, number: int) -> int:
        return self._begins[number] + len(self._order[number])

    def _opened(self, numbers: range, begin: int, end: int) -> bool:
        fresh = Counter(self._order[number] for number in numbers if number not in self._open)
        if any(count > self._left[word] for word, count in fresh.items()):
            return False
        spans = []
        for number in numbers:
            here = self._open.get(number) or [False] * len(self._order[number])
            start = self._begins[number]
            span = range(max(begin, start) - start, min(end, self._end(number)) - start)
            if any(here[letter] for letter in span):
                return False
            spans.append((number, here, span))
        self._left.subtract(fresh)
        for number, here, span in spans:
            for letter in span:
                here[letter] = True
            self._open[number] = here
        return True


def _shared_out(
    needed: list[tuple[Part, list[str]]], lost: Counter[str], passed_over: list[str]
) -> tuple[int, dict[str, str]]:
    """Take from what is lost the words of parts that are named, and return how many, and where the others stand."""
    if not lost:
        return 0, {}
    over = "\n".join(passed_over).casefold()
    named = 0
    where: dict[str, str] = {}
    later: list[tuple[Part, list[str]]] = []
    for part, words in needed:
        if not any(lost[word] > 0 for word in words):
            continue
        if any(_mentions(over, name) for name in part.names):
            for word in words:
                if lost[word] > 0:
                    lost[word] -= 1
                    named += 1
        else:
            later.append((part, words))
    for part, words in later:
        for word in words:
            if lost[word] > 0:
                where.setdefault(word, ", ".join(part.names[:2]))
    return named, where


def _mentions(over: str, name: str) -> bool:
    return bool(over) and re.search(rf"(?<!\w){re.escape(name.casefold())}s?(?!\w)", over) is not None
