"""HTML and XHTML, by selectolax and lxml: a section for each heading. Nothing is fetched, no script is run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from everlong.files import xhtml
from everlong.files.dates import seconds_of
from everlong.files.document import Document, PassedOverError, Section, filled, line_of
from everlong.files.markup import SILENT, sections_of
from everlong.files.plain import decoded_with_details

_HEAD = 1 << 16  # bytes in which a page states its encoding
_META = re.compile(rb"""<meta\b[^<>]*?\bcharset\s*=\s*["']?\s*([\w.:-]{2,40})""", re.I)
_XML_ENCODING = re.compile(rb"""\A(?:\xef\xbb\xbf)?\s*<\?xml\b[^>]*?\bencoding\s*=\s*["']([\w.:-]{2,40})""")
_DATES = (
    ('meta[property="article:published_time"]', "content"),
    ('meta[name="date"]', "content"),
    ('meta[name="dcterms.date"]', "content"),
    ('meta[itemprop="datePublished"]', "content"),
    ("article time[datetime]", "datetime"),
)
# What a page does not show. `until-found` is for a search to find.
_HIDDEN = '[hidden]:not([hidden="until-found"]), [style*="display" i], [style*="visibility" i]'
_HIDING = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)\b", re.I)
_NO_WORDS = "script, style, template, noscript"
_SWALLOWED = re.compile(r"</(?!script|style|title|textarea)[a-z]", re.I)  # ends of other elements within one


def read(data: bytes, suffix: str) -> Iterator[Document | PassedOverError]:
    """Yield the page. What it hides, and pages that it shows in frames, are passed over."""
    page, details = markup_of(data)
    found = Page(page, as_xml=suffix in ("xhtml", "xht"))
    yield from found.passed_over
    yield dataclasses.replace(found.document(), details=details)


def of_page(page: str) -> Document:
    """Return a page's text under its headings."""
    return Page(page).document()


def markup_of(data: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the bytes of a page as text, by the encoding that it states; and what of that is not certain."""
    stated = _XML_ENCODING.search(data[:_HEAD]) or _META.search(data[:_HEAD])
    name = stated[1].decode("ascii") if stated else ""
    if name.lower().startswith(("utf-16", "utf-32")):  # which is said in ASCII, and so it is not
        name = ""
    return decoded_with_details(data, name)


class Page:
    """A page that is looked at. `hides` is false where what it hides appears elsewhere, as a book's notes do."""

    def __init__(self, page: str, *, as_xml: bool = False, hides: bool = True) -> None:
        self.passed_over: list[PassedOverError] = []
        self._hides, self._hidden = hides, 0
        if as_xml or xhtml.is_xhtml(page):
            as_html = xhtml.as_html(page)
            page = xhtml.mended(page) if as_html is None else as_html
        self._root = self._parsed(page)
        self._note()

    def has_pictures(self) -> bool:
        """Whether it shows pictures, or films."""
        return self._root is not None and self._root.css_first("img, svg, image, object, video") is not None

    def document(self) -> Document:
        """Return its text, its title and what it says of itself."""
        if self._root is None:
            return Document(())
        first = self._root.css_first
        title, author = first("title"), first('meta[name="author"]')
        dates = (seconds_of(node.attributes.get(name)) for rule, name in _DATES if (node := first(rule)) is not None)
        whole = "" if title is None else " ".join(title.text().split())
        named = line_of(whole)
        author = line_of("" if author is None else author.attributes.get("content"))
        happened = next((date for date in dates if date is not None), None)
        sections = sections_of(_without_silent(self._root), lambda page: _without_silent(self._parsed(page)))
        return Document(
            filled(sections if whole == named else [Section("", f"{whole}\n\n"), *sections]),
            title=named,
            author=author,
            happened=happened,
        )

    def _parsed(self, page: str) -> Any:
        """Return the root of a page, or of one within it, without what it hides."""
        from selectolax.lexbor import LexborHTMLParser

        root = LexborHTMLParser(page).root
        if root is None:
            return None
        may_hide = "hidden" in page or "none" in page.lower()
        for node in root.css(_HIDDEN if self._hides else "nav[hidden]") if may_hide else ():
            attributes = node.attributes
            if "hidden" in attributes or _HIDING.search(attributes.get("style") or ""):
                if self._hides:
                    for silent in node.css(_NO_WORDS):
                        silent.decompose()
                    self._hidden += len(node.text(separator=" ").split())
                node.decompose()
        return root

    def _note(self) -> None:
        """Note what is not read of the page."""
        if self._root is None:
            return
        if self._hidden:
            self.passed_over.append(PassedOverError("hidden text", f"is not shown: {self._hidden:,} words"))
        watched = self._root.css("frame[src], title, textarea, style")
        frames = [line_of(node.attributes.get("src")) for node in watched if node.tag == "frame"]
        if frames:
            self.passed_over.append(PassedOverError(", ".join(frames), "are pages of their own, shown in frames"))
        if any(_SWALLOWED.search(node.text()) for node in watched):
            why = "has no end: the page's own text may be lost in it"
            self.passed_over.append(PassedOverError("a title, a style or a field", why))


def _without_silent(root: Any) -> Any:
    for node in [] if root is None else root.css(SILENT):
        node.decompose()
    return root
