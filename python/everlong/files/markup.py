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
SILENT = "script, style, head, rp, datalist"  # to be taken out of a tree before
# What stands on lines of its own, and what before and behind it: the end of a line, or a blank line, too.
_BLOCKS = {
    **dict.fromkeys(("p", *_HEADINGS), "\n\n"),
    **dict.fromkeys(("address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "desc"), "\n"),
    **dict.fromkeys(("details", "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure"), "\n"),
    **dict.fromkeys(("footer", "form", "frameset", "header", "hgroup", "hr", "iframe", "legend", "li"), "\n"),
    **dict.fromkeys(("listing", "main", "menu", "nav", "noembed", "noframes", "ol", "optgroup", "option"), "\n"),
    **dict.fromkeys(("plaintext", "pre", "search", "section", "select", "summary", "svg", "table", "tbody"), "\n"),
    **dict.fromkeys(("template", "text", "textarea", "tfoot", "thead", "title", "tr", "ul", "xmp"), "\n"),
}
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
_MARKUP = frozenset({"iframe", "noframes", "noembed"})  # their text is markup
_WITHIN = frozenset({"template", *_MARKUP})  # pages within a page
_WITH_ATTRIBUTES = frozenset({"input", "option", "optgroup", "textarea", *_EXPLAINED, *_WITHIN})
_NO_VALUE = frozenset({"hidden", "password", "file", "color", "range"})
_MATH = {"mfrac": "/", "msup": "^", "msub": "_", "msubsup": "_^", "munderover": "_^", "mroot": "^"}  # before the second
_SPECIAL = _BLOCKS.keys() | _APART | _CELLS | _READINGS | _WITH_ATTRIBUTES | _MATH.keys() | {"br", "ruby", "sup", "sub"}
_BREAKS = ("\n", "\n\n")  # between blocks: several are as one
_END_OF_LINE = " \n"  # that the page asks for: several are several
_DEEPEST = 4  # pages within pages
_DEEPEST_ELEMENT = 100  # of which all text is looked at: no page is as deep, and each looks at what those below do
# In place of spaces and ends of lines that count. Text has none of these characters: `cleaned` takes them out of it.
_COUNTING = str.maketrans({" ": "\1", "\t": "\2", "\n": "\3"})
_COUNTED = str.maketrans({"\1": " ", "\2": "\t", "\3": "\n"})
_EXPONENT = re.compile(r"\s*(?:[-+−–]?\d|[ijkmntxyz]\s*\Z)")


def sections_of(root: Any, parsed: Callable[[str], Any]) -> Iterator[Section]:
    """Yield the text below `root`, a node of selectolax. `parsed` returns such a node for a page within the page."""
    reading = _Reading(parsed)
    yield from reading.sections(root)
    yield reading.section()


class _Reading:
    def __init__(self, parsed: Callable[[str], Any]) -> None:
        self._parsed = parsed
        self._place = ""  # the last heading
        self._pieces: list[str] = []  # since then
        self._deep = False  # so deep that no page is
        self._typed = self._pages = 0  # elements above whose spaces count; pages above
        self._parts: list[int] = []  # of each formula above that has several: how many came
        self._ruby: list[list[str]] = []  # the readings of each that is above
        self._base: list[int] = []  # how many pieces stand before each reading that is above

    def sections(self, root: Any) -> Iterator[Section]:
        """Yield a section for each heading but the last. However deep elements lie, only pages lie within a call."""
        pieces, top = self._pieces, root.mem_id
        above: list[tuple[int, str, str]] = [(top, "", "")]  # elements: who, which, what is said behind it
        for node in root.traverse(include_text=True):
            parent = node.parent
            if parent is None or node.mem_id == top:
                continue
            parent_id = parent.mem_id
            while above[-1][0] != parent_id and len(above) > 1:
                _, tag, behind = above.pop()
                if tag:
                    self._leave(tag, behind)
            tag = node.tag
            if tag == "-text":
                text = node.text_content
                if self._typed:
                    pieces.append(text.translate(_COUNTING))
                elif above[-1][1] not in _MARKUP:
                    if "\n" in text:
                        text = text.replace("\n", " ")
                        if text.isspace() and (not pieces or pieces[-1] in _BREAKS):
                            continue
                    pieces.append(text)
                continue
            if self._parts and above[-1][1] in _MATH:
                pieces.append(self._sign(above[-1][1]))
            self._deep = len(above) > _DEEPEST_ELEMENT
            if tag in _HEADINGS:
                yield self.section()
                self._place = line_of(self._text(node))
            if tag in _SPECIAL and not (self._deep and tag in _READINGS):
                above.append((node.mem_id, tag, self._enter(tag, node)))
                if tag in _WITHIN:
                    yield from self._page_within(tag, node)
            elif "-" in tag[1:]:
                pieces.append(" ")
                above.append((node.mem_id, tag, " "))
            else:
                above.append((node.mem_id, "", ""))
        while len(above) > 1:
            _, tag, behind = above.pop()
            if tag:
                self._leave(tag, behind)

    def section(self) -> Section:
        """Return what was read since the last heading, and begin anew."""
        text = "".join(self._pieces)
        self._pieces.clear()
        lines = [" ".join(line.split()).removeprefix("| ") for line in text.replace("\xad", "").split("\n")]
        text = "\n".join(lines)
        if "\n\n\n" in text:
            text = re.sub(r"\n{3,}", "\n\n", text)
        text = text.strip()
        if "\1" in text or "\2" in text or "\3" in text:
            text = text.translate(_COUNTED)
        return paragraph(self._place, text)

    def _break(self, what: str) -> None:
        if not self._pieces or self._pieces[-1] not in _BREAKS:
            self._pieces.append(what)
        elif what == "\n\n":
            self._pieces[-1] = what

    def _enter(self, tag: str, node: Any) -> str:
        """Say what an element says before its text; return what it says behind it."""
        if tag in _BLOCKS:
            self._break(_BLOCKS[tag])
        elif tag in _CELLS:
            self._pieces.append(" | ")
        elif tag in _APART:
            self._pieces.append(" ")
        elif tag == "br":
            self._pieces.append(_END_OF_LINE)
        elif tag in ("sup", "sub"):
            self._raise(tag, self._text(node))
        elif tag == "ruby":
            self._ruby.append([])
        elif tag in _READINGS:
            self._base.append(len(self._pieces))
        elif tag in _MATH:
            self._parts.append(0)
        self._typed += tag in _AS_TYPED
        if tag not in _WITH_ATTRIBUTES:
            return ""
        attributes = node.attributes
        return self._attributes(tag, attributes, node) if attributes else ""

    def _leave(self, tag: str, behind: str) -> None:
        if behind:
            self._pieces.append(behind)
        if tag in _BLOCKS:
            self._break(_BLOCKS[tag])
        elif tag in _APART:
            self._pieces.append(" ")
        elif tag in _READINGS:
            begin = self._base.pop()
            reading = "".join(self._pieces[begin:]).strip()
            del self._pieces[begin:]
            if self._ruby:
                self._ruby[-1].append(reading)
            else:
                self._pieces.append(f"({reading})")
        elif tag == "ruby":
            readings = self._ruby.pop()
            if any(readings):
                self._pieces.append(f"({(' ' if readings[0].isascii() else '').join(readings)})")
        elif tag in _MATH:
            self._parts.pop()
        self._typed -= tag in _AS_TYPED

    def _sign(self, formula: str) -> str:
        """Return what stands before the next part of a formula: 1/2, x^2."""
        self._parts[-1] += 1
        return _MATH[formula][self._parts[-1] - 2 : self._parts[-1] - 1] if self._parts[-1] > 1 else ""

    def _raise(self, tag: str, text: str) -> None:
        """Keep a power from being read as more digits of its base: 10<sup>6</sup> is 10^6."""
        before = next((piece[-1] for piece in reversed(self._pieces) if piece), "")
        if tag == "sup" and (before.isalnum() or before == ")") and _EXPONENT.match(text):
            self._pieces.append("^")
        elif tag == "sub" and before.isdigit() and text[:1].isdigit():
            self._pieces.append("_")

    def _attributes(self, tag: str, attributes: dict[str, str | None], node: Any) -> str:
        def attribute_of(name: str) -> str:
            return attributes.get(name) or ""

        own = ""
        if tag == "input":
            kind = attribute_of("type").lower()
            if kind in ("checkbox", "radio"):
                own = "[x] " if "checked" in attributes else "[ ] "
            elif kind == "image":
                own = attribute_of("alt")
            elif kind not in _NO_VALUE:
                own = attribute_of("value") or attribute_of("placeholder")
        elif tag in ("img", "area"):
            own = attribute_of("alt")
        elif tag == "optgroup":
            own = attribute_of("label") + "\n"
        elif tag == "option":
            label = attribute_of("label")
            own = ("[x] " if "selected" in attributes else "") + (label if label not in self._text(node) else "") + " "
        elif tag == "textarea" and not self._text(node).strip():
            own = attribute_of("placeholder")
        if own:
            self._pieces.append(own)
        title = attribute_of("title").strip() if tag in _EXPLAINED else ""
        return f" ({' '.join(title.split())})" if title and title not in (own or self._text(node)) else ""

    def _text(self, node: Any) -> str:
        return "" if self._deep else str(node.text())

    def _page_within(self, tag: str, node: Any) -> Iterator[Section]:
        """Yield the sections of a page within the page, where it is shown."""
        page = ""
        if tag == "iframe":
            page = node.attributes.get("srcdoc") or ""
        elif tag in _MARKUP:
            page = node.text()
        elif {"shadowrootmode", "shadowroot"} & node.attributes.keys():
            whole = node.html or ""
            page = whole[whole.index(">") + 1 : whole.rindex("</")]
        root = self._parsed(page) if page.strip() and self._pages < _DEEPEST else None
        if root is not None:
            self._pages += 1
            yield from self.sections(root)
            self._pages -= 1
