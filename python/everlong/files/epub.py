"""EPUB: a section for each heading of its chapters, in reading order."""

from __future__ import annotations

import io
import posixpath
import urllib.parse
import zipfile
from collections.abc import Iterator
from typing import Any

from everlong.files.dates import seconds_of
from everlong.files.document import Document, NoTextError, Section, filled, line_of
from everlong.files.html import of_page
from everlong.files.plain import decoded

_CONTAINER = "META-INF/container.xml"


def read(data: bytes, suffix: str) -> Iterator[Document]:
    """Yield the book. A chapter that is missing is left out."""
    book = zipfile.ZipFile(io.BytesIO(data))
    root = _parsed(book, _CONTAINER).find(".//{*}rootfile")
    place = "" if root is None else root.get("full-path", "")
    package = _parsed(book, place)
    files = {item.get("id"): item.get("href", "") for item in package.iterfind(".//{*}manifest/{*}item")}
    order = [files.get(item.get("idref")) for item in package.iterfind(".//{*}spine/{*}itemref")]
    sections: list[Section] = []
    for number, href in enumerate(order, 1):
        name = posixpath.normpath(posixpath.join(posixpath.dirname(place), urllib.parse.unquote(href or "")))
        if name in book.namelist():
            chapter = of_page(decoded(book.read(name)))
            named = chapter.title or f"chapter {number}"
            sections += [Section(section.place or named, section.text) for section in chapter.sections]

    def text_of(what: str) -> str:
        found = package.find(f".//{{*}}metadata/{{http://purl.org/dc/elements/1.1/}}{what}")
        return "" if found is None else line_of(found.text)

    yield Document(
        filled(sections), title=text_of("title"), author=text_of("creator"), happened=seconds_of(text_of("date"))
    )


def _parsed(book: zipfile.ZipFile, name: str) -> Any:
    from lxml import etree

    try:
        parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
        return etree.fromstring(book.read(name), parser)
    except (KeyError, etree.XMLSyntaxError, zipfile.BadZipFile) as error:
        raise NoTextError(f"is no whole e-book: {error}") from None
