"""EPUB: a section for each heading of its chapters, in reading order."""

from __future__ import annotations

import io
import posixpath
import unicodedata
import urllib.parse
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from everlong.files.dates import seconds_of
from everlong.files.document import Document, NoTextError, PassedOverError, Section, filled, line_of
from everlong.files.html import Page, markup_of

_CONTAINER = "META-INF/container.xml"
_OF_PROTECTION = ("META-INF/encryption.xml", "META-INF/rights.xml", "META-INF/sinf.xml")
_FONTS_ALONE = (
    "http://www.idpf.org/2008/embedding",
    "http://ns.adobe.com/pdf/enc#RC",
)  # obfuscated, as their makers ask
_PROTECTED = "is encrypted: the book is protected (DRM)"
_PACKAGE = "application/oebps-package+xml"
_DC = "{http://purl.org/dc/elements/1.1/}"
_READ = ("application/xhtml+xml", "text/html", "text/x-oeb1-document", "application/x-dtbook+xml", "image/svg+xml", "")
_BROKEN = (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, OSError, EOFError, KeyError, ValueError)


def read(data: bytes, suffix: str) -> Iterator[Document | PassedOverError]:
    """Yield the book. A chapter that is missing, damaged, encrypted or a picture is passed over."""
    book = _Book(data)
    root = book.parsed(_CONTAINER)
    places = [
        one.get("full-path", "")
        for one in root.iterfind(".//{*}rootfile")
        if one.get("media-type", _PACKAGE) == _PACKAGE
    ]
    sections: list[Section] = []
    about: Any = None
    for number, place in enumerate(places or [""]):
        try:
            package = book.parsed(place)
        except NoTextError as error:
            if not number:
                raise
            yield PassedOverError(line_of(place), str(error))
            continue
        about = package if about is None else about
        for chapter in _chapters(package):
            found = book.chapter(place, *chapter)
            sections += found[0]
            yield from found[1]
        for item in package.iterfind(".//{*}manifest/{*}item"):
            if "nav" in (item.get("properties") or "").split():
                sections += _only_in_contents(book.chapter(place, item.get("href", ""), _kind(item))[0], sections)
    titles, authors = _metadata(about, "title"), _metadata(about, "creator")
    if not (told := filled(sections)):
        return
    yield Document(
        told,
        title=line_of(titles[0] if titles else ""),
        author=line_of(", ".join(authors)),
        happened=next((date for date in map(seconds_of, _metadata(about, "date")) if date is not None), None),
        details=tuple(book.details),
    )


def _metadata(package: Any, what: str) -> list[str]:
    found = [" ".join("".join(one.itertext()).split()) for one in package.iterfind(f".//{_DC}{what}")]
    return list(dict.fromkeys(filter(None, found)))


def _chapters(package: Any) -> Iterator[tuple[str, str]]:
    """Yield where each chapter is, and its kind: in the spine's order, and then those that stand in no spine."""
    items = {item.get("id"): item for item in package.iterfind(".//{*}manifest/{*}item")}
    in_spine: set[str | None] = set()
    for reference in package.iterfind(".//{*}spine/{*}itemref"):
        name, item = reference.get("idref"), items.get(reference.get("idref"))
        if item is None:
            yield f"#{name}", ""
        tried: set[str | None] = set()
        while item is not None:
            in_spine.add(item.get("id"))
            tried.add(item.get("id"))
            instead = item.get("fallback")
            if _kind(item) in _READ or instead in tried or instead not in items:
                yield item.get("href", ""), _kind(item)
                break
            item = items[instead]
    for name, item in items.items():
        if name not in in_spine and not _is_apart(item) and _kind(item) in _READ[:-2]:
            yield item.get("href", ""), _kind(item)


def _is_apart(item: Any) -> bool:
    """Return whether an item is the table of contents or the cover."""
    return bool({"nav", "cover-image"} & set((item.get("properties") or "").split()))


def _only_in_contents(contents: Sequence[Section], chapters: Sequence[Section]) -> Iterator[Section]:
    """Yield the lines of a table of contents that no chapter says. It usually repeats what chapters are called."""
    text = " ".join(" ".join(section.text.split()) for section in chapters)
    lines = [" ".join(line.split()).strip("-* ") for section in contents for line in section.text.splitlines()]
    if own := [line for line in dict.fromkeys(lines) if line and line not in text]:
        yield Section("contents", "\n".join(own) + "\n")


def _kind(item: Any) -> str:
    return (item.get("media-type") or "").partition(";")[0].strip().lower()


class _Book:
    """A book's members, by the names that its package gives them."""

    def __init__(self, data: bytes) -> None:
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        names = self._zip.namelist()
        self._names = {_same(name): name for name in reversed(names)} | {name: name for name in names}
        self._read: set[str] = set()
        self._chapters = 0
        self.details: list[str] = []
        self._protected = any(name in self._names for name in _OF_PROTECTION)
        self._encrypted = set(self._encrypted_members())

    def parsed(self, name: str) -> Any:
        """Return a member that is XML. NoTextError where it is none."""
        from lxml import etree

        parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
        try:
            return etree.fromstring(self._zip.read(self._names.get(name) or self._names[_same(name)]), parser)
        except (*_BROKEN, etree.XMLSyntaxError) as error:
            raise NoTextError(f"is no whole e-book: {error}") from None

    def chapter(self, package: str, href: str, kind: str) -> tuple[list[Section], list[PassedOverError]]:
        """Return what a chapter says, and what is passed over in it. One that was read before says nothing more."""
        self._chapters += 1
        name = self._member(package, href)
        if name is None:
            return [], [PassedOverError(line_of(href or "a chapter"), "is missing in the book")]
        if name in self._read:
            return [], []
        self._read.add(name)
        place = line_of(name)
        if name in self._encrypted:
            return [], [PassedOverError(place, _PROTECTED)]
        if kind not in _READ:
            return [], [PassedOverError(place, f"is no text ({kind})")]
        try:
            text, details = markup_of(self._zip.read(name))
            if "<" not in text or "\0" in text:
                raise ValueError("it has no elements")
        except _BROKEN as error:
            return [], [PassedOverError(place, _PROTECTED if self._protected else f"is damaged: {error}")]
        page = Page(text, as_xml=True, hides=False)
        found = page.document()
        named = found.title or f"chapter {self._chapters}"
        sections = [Section(section.place or named, section.text) for section in found.sections]
        over = [PassedOverError(f"{place}, {one.name}", str(one)) for one in page.passed_over]
        self.details += [f"{place}: {one}" for one in details]
        if not sections and page.has_pictures():
            over.append(PassedOverError(place, "has no text: it shows a picture"))
        return sections, over

    def _member(self, package: str, href: str) -> str | None:
        """Return the name of the member that a package refers to; None where there is none, however it is spelled."""
        path = href.partition("#")[0].partition("?")[0]
        for one in (urllib.parse.unquote(path), path, urllib.parse.unquote(href), href):
            name = posixpath.normpath(posixpath.join("/", posixpath.dirname(package), one)).lstrip("/")
            found = self._names.get(name) or self._names.get(_same(name))
            if found is not None and one and not found.endswith("/"):
                return found
        return None

    def _encrypted_members(self) -> Iterator[str]:
        """Yield the members that are encrypted, but for fonts."""
        if _OF_PROTECTION[0] not in self._names:
            return
        try:
            root = self.parsed(_OF_PROTECTION[0])
        except NoTextError:
            return
        for one in root.iterfind(".//{*}EncryptedData"):
            method = one.find(".//{*}EncryptionMethod")
            if method is None or method.get("Algorithm") not in _FONTS_ALONE:
                for reference in one.iterfind(".//{*}CipherReference"):
                    member = self._member("", reference.get("URI", ""))
                    if member is not None:
                        yield member


def _same(name: str) -> str:
    """Return a name as it is compared where none is the same letter by letter."""
    return unicodedata.normalize("NFC", name.replace("\\", "/")).casefold().lstrip("/")
