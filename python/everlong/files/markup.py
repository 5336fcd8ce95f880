"""The text of a page's elements, as one who looks at the page reads it: a section for each heading.

What appears after a click is read: `details`, dialogs, lists of choices, what stands for a picture or an abbreviation.
So is `noscript`, since no script is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from everlong.files.document import Section, line_of, paragraph

_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_SILENT = frozenset({"script", "style", "head", "rp", "datalist"})
_BLOCKS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "desc", "details", "dialog"),
        *("dir", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "frameset", "header", "hr"),
        *(
            "hgroup",
            "iframe",
            "legend",
            "li",
            "listing",
            "main",
            "menu",
            "nav",
            "noembed",
            "noframes",
            "ol",
            "optgroup",
        ),
        *("option", "plaintext", "pre", "search", "section", "select", "summary", "svg", "table", "tbody", "template"),
        *("text", "textarea", "tfoot", "thead", "title", "tr", "ul", "xmp"),
    }
)
_WITH_BLANK = frozenset({"p", *_HEADINGS})  # a blank line stands before and behind it
_APART = frozenset(
    {
        *("annotation", "annotation-xml", "audio", "button", "canvas", "img", "input", "label", "meter", "object"),
        *("output", "progress", "tspan", "video"),
    }
)
_CELLS = frozenset({"td", "th"})
_AS_TYPED = frozenset({"pre", "textarea", "xmp", "listing", "plaintext"})  # spaces and ends of lines count
_READINGS = frozenset({"rt", "rtc"})  # of the characters of `ruby`
_EXPLAINED = frozenset({"abbr", "acronym", "dfn", "img", "area", "span", "td", "th"})  # by their `title`
_WITHIN = frozenset({"iframe", "template", "noframes", "noembed"})  # pages within a page
_WITH_ATTRIBUTES = frozenset({"input", "option", "optgroup", "textarea", *_EXPLAINED, *_WITHIN})
_NO_VALUE = frozenset({"hidden", "password", "file", "color", "range"})
_MATH = {"mfrac": "/", "msup": "^", "msub": "_", "msubsup": "_^", "munderover": "_^", "mroot": "^"}  # before the second
_SPECIAL = _HEADINGS | _SILENT | _BLOCKS | _WITH_BLANK | _APART | _CELLS | _READINGS | _WITH_ATTRIBUTES
_SPECIAL |= {"br", "ruby", "sup", "sub", *_MATH}
_BREAKS = ("\n", "\n\n")  # between blocks: several are as one
_END_OF_LINE = " \n"  # that the page asks for: several are several
_DEEPEST = 4  # pages within pages
# In place of spaces and ends of lines that count. Text has none of these characters: `cleaned` takes them out of it.
_COUNTING = str.maketrans({" ": "\1", "\t": "\2", "\n": "\3"})
_COUNTED = str.maketrans({"\1": " ", "\2": "\t", "\3": "\n"})
_EXPONENT = re.compile(r"\s*(?:[-+−–]?\d|[ijkmntxyz]\s*\Z)")


def sections_of(root: Any, parsed: Callable[[str], Any]) -> Iterator[Section]:
    """Yield the text below `root`, a node of selectolax. `parsed` returns such a node for a page within the page."""
    return _Reading(parsed).sections(root)


class _Reading:
    def __init__(self, parsed: Callable[[str], Any]) -> None:
        self._parsed = parsed
        self._pieces: list[str] = []  # since the last heading
        self._typed = self._pages = 0  # elements above whose spaces count; pages above
        self._ruby: list[list[str]] = []  # the readings of each that is above
        self._base: list[list[str]] = []  # the pieces before each reading that is above

    def sections(self, root: Any) -> Iterator[Section]:
        """Walk through the elements. However deep they lie, nothing is called within itself."""
        place = ""
        # Of each element above: its tag, what is left of it, what is said behind it, its children so far.
        above: list[list[Any]] = [["", root.iter(include_text=True), "", 0]]
        while above:
            parent = above[-1]
            for node in parent[1]:
                tag = node.tag
                if tag == "-text":
                    self._text(node.text())
                    continue
                if tag[0] in "-!" or tag in _SILENT:
                    continue
                behind = ""
                if tag in _HEADINGS:
                    yield paragraph(place, self._told())
                    place = line_of(node.text())
                if parent[0] in _MATH:
                    parent[3] += 1
                    self._pieces.append(_MATH[parent[0]][parent[3] - 2 : parent[3] - 1] if parent[3] > 1 else "")
                children = node
                if tag in _SPECIAL:
                    behind = self._enter(tag, node)
                    if tag in _WITHIN:
                        children = self._page_within(tag, node)
                elif "-" in tag:
                    self._pieces.append(" ")
                above.append([tag, iter(()) if children is None else children.iter(include_text=True), behind, 0])
                break
            else:
                above.pop()
                self._leave(parent[0], parent[2])
        yield paragraph(place, self._told())

    def _told(self) -> str:
        """Return what was read since the last heading, and begin anew."""
        text = "".join(self._pieces)
        self._pieces = []
        lines = [" ".join(line.split()).removeprefix("| ") for line in text.replace("\xad", "").split("\n")]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip().translate(_COUNTED)

    def _text(self, text: str) -> None:
        if self._typed:
            text = text.translate(_COUNTING)
        elif "\n" in text:
            text = text.replace("\n", " ")
            if text.isspace() and (not self._pieces or self._pieces[-1] in _BREAKS):
                return
        self._pieces.append(text)

    def _break(self, what: str) -> None:
        if not self._pieces or self._pieces[-1] not in _BREAKS:
            self._pieces.append(what)
        elif what == "\n\n":
            self._pieces[-1] = what

    def _enter(self, tag: str, node: Any) -> str:
        """Say what an element says before its text; return what it says behind it."""
        if tag in _WITH_BLANK:
            self._break("\n\n")
        elif tag in _BLOCKS:
            self._break("\n")
        elif tag in _CELLS:
            self._pieces.append(" | ")
        elif tag in _APART:
            self._pieces.append(" ")
        elif tag == "br":
            self._pieces.append(_END_OF_LINE)
        elif tag in ("sup", "sub"):
            self._raise(tag, node.text())
        elif tag == "ruby":
            self._ruby.append([])
        elif tag in _READINGS:
            self._base.append(self._pieces)
            self._pieces = []
        self._typed += tag in _AS_TYPED
        if tag not in _WITH_ATTRIBUTES:
            return ""
        attributes = node.attributes
        return self._attributes(tag, attributes, node) if attributes else ""

    def _leave(self, tag: str, behind: str) -> None:
        if behind:
            self._pieces.append(behind)
        if tag not in _SPECIAL:
            if "-" in tag:
                self._pieces.append(" ")
            return
        if tag in _WITH_BLANK:
            self._break("\n\n")
        elif tag in _BLOCKS:
            self._break("\n")
        elif tag in _APART:
            self._pieces.append(" ")
        elif tag in _READINGS:
            reading, self._pieces = "".join(self._pieces).strip(), self._base.pop()
            if self._ruby:
                self._ruby[-1].append(reading)
            else:
                self._pieces.append(f"({reading})")
        elif tag == "ruby":
            readings = self._ruby.pop()
            if any(readings):
                self._pieces.append(f"({(' ' if readings[0].isascii() else '').join(readings)})")
        self._typed -= tag in _AS_TYPED
        self._pages -= tag in _WITHIN

    def _raise(self, tag: str, text: str) -> None:
        """Keep a power from being read as more digits of its base: 10<sup>6</sup> is 10^6."""
        before = next((piece[-1] for piece in reversed(self._pieces) if piece), "")
        if tag == "sup" and (before.isalnum() or before == ")") and _EXPONENT.match(text):
            self._pieces.append("^")
        elif tag == "sub" and before.isdigit() and text[:1].isdigit():
            self._pieces.append("_")

    def _attributes(self, tag: str, attributes: dict[str, str | None], node: Any) -> str:
        def said(name: str) -> str:
            return attributes.get(name) or ""

        own = ""
        if tag == "input":
            kind = said("type").lower()
            if kind in ("checkbox", "radio"):
                own = "[x] " if "checked" in attributes else "[ ] "
            elif kind == "image":
                own = said("alt")
            elif kind not in _NO_VALUE:
                own = said("value") or said("placeholder")
        elif tag in ("img", "area"):
            own = said("alt")
        elif tag == "optgroup":
            own = said("label") + "\n"
        elif tag == "option":
            label = said("label")
            own = ("[x] " if "selected" in attributes else "") + (label if label not in node.text() else "") + " "
        elif tag == "textarea" and not node.text().strip():
            own = said("placeholder")
        self._text(own)
        title = said("title").strip() if tag in _EXPLAINED else ""
        return f" ({' '.join(title.split())})" if title and title not in (own or node.text()) else ""

    def _page_within(self, tag: str, node: Any) -> Any:
        """Return the root of a page within the page that is shown; None where there is none."""
        self._pages += 1
        page = ""
        if tag == "iframe":
            page = node.attributes.get("srcdoc") or ""
        elif tag in ("noframes", "noembed"):
            page = node.text()
        elif {"shadowrootmode", "shadowroot"} & node.attributes.keys():
            whole = node.html or ""
            page = whole[whole.index(">") + 1 : whole.rindex("</")]
        return self._parsed(page) if page.strip() and self._pages <= _DEEPEST else None
