"""HTML, by selectolax: a section for each heading. Nothing is fetched, no script is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from everlong.files.dates import seconds_of
from everlong.files.document import Document, Section, filled, line_of, paragraph
from everlong.files.plain import decoded

_CHARSET = re.compile(rb"""charset\s*=\s*["']?([\w-]{2,30})""", re.I)
_XML_ENCODING = re.compile(rb"""\A<\?xml[^>]*encoding\s*=\s*["']([\w-]{2,30})""")
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_SILENT = "script, style, noscript, template, svg, iframe, object, head"
_BLOCKS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "br", "dd", "details", "div", "dl", "dt", "fieldset"),
        *("figcaption", "figure", "footer", "form", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section"),
        *("summary", "table", "tbody", "tfoot", "thead", "tr", "ul"),
    }
)
_CELLS = ("td", "th")
_DATES = (
    ('meta[property="article:published_time"]', "content"),
    ('meta[name="date"]', "content"),
    ('meta[name="dcterms.date"]', "content"),
    ('meta[itemprop="datePublished"]', "content"),
    ("article time[datetime]", "datetime"),
)


def read(data: bytes, suffix: str) -> Iterator[Document]:
    """Yield the page."""
    stated = _XML_ENCODING.search(data[:200]) or _CHARSET.search(data[:4096])
    yield of_page(decoded(data, stated[1].decode("ascii") if stated else ""))


def of_page(page: str) -> Document:
    """Return a page's text under its headings."""
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(page)
    title = tree.css_first("title")
    author = tree.css_first('meta[name="author"]')
    dates = (
        seconds_of(node.attributes.get(name)) for rule, name in _DATES if (node := tree.css_first(rule)) is not None
    )
    named = line_of("" if title is None else title.text())
    by = line_of("" if author is None else author.attributes.get("content"))
    happened = next((date for date in dates if date is not None), None)
    for node in tree.css(_SILENT):
        node.decompose()
    return Document(filled(_sections(tree.root)), title=named, author=by, happened=happened)


def _sections(root: Any) -> Iterator[Section]:
    place, heading = "", ""
    pieces: list[str] = []
    for node in [] if root is None else root.traverse(include_text=True):
        tag = node.tag
        if tag in _HEADINGS:
            yield paragraph(place, _tidied("".join(pieces)))
            place, pieces, heading = line_of(node.text()), ["\n"], tag
        elif tag == "-text":
            pieces.append(node.text())
        elif tag in _BLOCKS:
            pieces.append("\n\n" if tag == "p" or heading else "\n")
            heading = ""
        elif tag in _CELLS:
            pieces.append(" | ")
    yield paragraph(place, _tidied("".join(pieces)))


def _tidied(text: str) -> str:
    lines = [" ".join(line.split()).removeprefix("| ") for line in text.split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
