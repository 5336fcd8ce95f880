"""Texts of Word: the whole tree of each part, a section for each heading.

Notes and comments stand behind the paragraph that refers to them, and so do text boxes, charts and diagrams. Headers
and footers are the last sections. Deleted text is not read, and named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from everlong.files.document import Document, Inner, PassedOverError
from everlong.office.drawing import Drawing, alternative, description, paragraphs
from everlong.office.formula import formula_text
from everlong.office.ooxml import OfficePackage, relationship_id
from everlong.office.outline import Block, Outline, row_of
from everlong.office.package import attribute, child_at, children, local
from everlong.office.symbols import symbol

_SILENT = frozenset(
    {
        *("pPr", "rPr", "tblPr", "tblPrEx", "tblGrid", "trPr", "tcPr", "sectPr", "sdtPr", "sdtEndPr", "customXmlPr"),
        *("smartTagPr", "rubyPr", "fldData", "instrText", "delText", "delInstrText"),
    }
)
_LEFT_OUT = {"del": "deleted text", "moveFrom": "text that was moved from here"}
_CHARACTERS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_NOTES = {"footnoteReference": "footnote", "endnoteReference": "endnote", "commentReference": "comment"}


class _Line:
    """What a paragraph says, and what stands behind it."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.behind: list[Callable[[], Iterable[Block]]] = []


def read(data: bytes, suffix: str) -> Iterator[Document | Inner | PassedOverError]:
    """Yield the document, and the files within it."""
    package = OfficePackage(data)
    main = package.main_part()
    outline = Outline()
    reader = _Reader(package, main, outline)
    root = package.tree(main, "the text")
    outline.add(reader.blocks(main, () if root is None else root))
    for kind in ("footnote", "endnote", "comment"):
        outline.begin(f"{kind}s")
        outline.add(reader.unread_notes(kind))
    for kind in ("header", "footer"):
        told: set[str] = set()
        outline.begin(f"page {kind}")
        for part in package.related(main, kind):
            header = package.tree(part, f"page {kind}")
            text = "\n".join(one.text for one in reader.blocks(part, header)) if header is not None else ""
            if text.strip() and text not in told:
                told.add(text)
                outline.add([Block(text)])
    sections = outline.sections()
    parts = (main, *package.related(main, "header", "footer", "footnotes", "endnotes", "comments"))
    inner = [file for part in parts for file in package.inner_files(part, "")]
    package.refuse_if_empty(sections, inner)
    yield Document(sections, **package.properties())
    yield from inner
    yield from outline.passed_over()
    yield from package.passed_over


class _Reader:
    """Reads the parts of a document. Each note, chart and diagram is read once, where it is first referred to."""

    def __init__(self, package: OfficePackage, main: str, outline: Outline) -> None:
        self._package, self._outline = package, outline
        self._headings = _headings(package, main)
        self._drawings: dict[str, Drawing] = {}
        self._notes: dict[tuple[str, str], tuple[str, Any]] = {}
        self._marks = 0
        for kind in ("footnote", "endnote", "comment"):
            for part in package.related(main, f"{kind}s"):
                root = package.tree(part, f"{kind}s")
                for note in () if root is None else children(root, kind):
                    if attribute(note, "type") in (None, "normal"):  # others are lines between text and notes
                        self._notes[kind, attribute(note, "id") or ""] = (part, note)

    def blocks(self, part: str, element: Any) -> Iterator[Block]:
        """Yield the paragraphs and rows below an element."""
        for child in element:
            yield from self._block(part, child)

    def unread_notes(self, kind: str) -> Iterator[Block]:
        """Yield the notes that nothing refers to."""
        for stated, number in list(self._notes):
            if stated == kind:
                yield from self._note(kind, number, "")

    def _block(self, part: str, element: Any) -> Iterator[Block]:
        name = local(element.tag)
        if name == "p":
            yield from self._paragraph(part, element, self._is_heading(element))
        elif name == "tbl":
            for row in self._found(element, "tr"):
                yield from self._row(part, row)
        elif name in _SILENT:
            return
        elif name in _LEFT_OUT:
            self._leave_out(element, _LEFT_OUT[name])
        elif name in ("r", "t", "hyperlink", "fldSimple", "oMath", "oMathPara", "AlternateContent"):
            yield from self._paragraph(part, [element], False)
        else:
            yield from self.blocks(part, element)

    def _found(self, element: Any, wanted: str) -> Iterator[Any]:
        """Yield the rows of a table, or the cells of a row, through what may stand around them."""
        for child in element:
            name = local(child.tag)
            if name == wanted:
                yield child
            elif name in _LEFT_OUT:
                self._leave_out(child, _LEFT_OUT[name])
            elif name not in _SILENT:
                yield from self._found(child, wanted)

    def _row(self, part: str, row: Any) -> Iterator[Block]:
        if child_at(row, "trPr", "del") is not None:
            self._leave_out(row, "a deleted row of a table")
            return
        cells = []
        for cell in self._found(row, "tc"):
            if child_at(cell, "tcPr", "cellDel") is not None:
                self._leave_out(cell, "a deleted cell of a table")
            else:
                cells.append(list(self.blocks(part, cell)))
        yield from row_of(cells)

    def _paragraph(self, part: str, element: Iterable[Any], heading: bool) -> Iterator[Block]:
        line = _Line()
        for child in element:
            self._inline(part, child, line)
        text = "".join(line.text)
        yield Block(text, heading=heading and bool(text.strip()))
        for behind in line.behind:
            yield from behind()

    def _inline(self, part: str, element: Any, line: _Line) -> None:
        name = local(element.tag)
        if name == "t":
            line.text.append(element.text or "")
        elif name in _SILENT or not name:
            return
        elif name in _CHARACTERS:
            line.text.append(_CHARACTERS[name])
        elif name in _LEFT_OUT:
            self._leave_out(element, _LEFT_OUT[name])
        elif name in _NOTES:
            self._refer(_NOTES[name], attribute(element, "id") or "", line)
        elif name in ("p", "tbl"):
            line.behind.append(lambda: self._block(part, element))
        elif name in ("txbxContent", "txbx"):
            line.behind.append(lambda: self.blocks(part, element))
        else:
            self._special(part, element, name, line)

    def _special(self, part: str, element: Any, name: str, line: _Line) -> None:
        """Put what is neither text nor around it into a line."""
        if name == "sym":
            line.text.append(_symbol(element))
        elif name == "oMath":
            line.text.append(formula_text(element))
            for gone in element.iter():
                if local(gone.tag) in _LEFT_OUT:
                    self._leave_out(gone, _LEFT_OUT[local(gone.tag)])
        elif name == "ruby":
            self._inline_at(part, child_at(element, "rubyBase"), line)
            line.text.append("(")
            self._inline_at(part, child_at(element, "rt"), line)
            line.text.append(")")
        elif name == "ddList":
            line.text.append(_chosen(element))
        elif name in ("docPr", "cNvPr"):
            self._tell(description(element), line)
        elif name == "textpath":
            self._tell([element.get("string", "")], line)
        elif name == "txBody":
            self._tell(paragraphs(element), line)
        elif name == "shape" and element.get("alt"):
            self._tell([element.get("alt")], line)
            self._inline_at(part, element, line)
        elif name in ("chart", "relIds") and relationship_id(element, "dm" if name == "relIds" else "id"):
            self._tell(self._drawing(part).related(element), line)
        elif name == "AlternateContent":
            self._alternative(part, element, line)
        else:
            self._inline_at(part, element, line)

    def _inline_at(self, part: str, element: Any, line: _Line) -> None:
        for child in () if element is None else element:
            self._inline(part, child, line)

    def _alternative(self, part: str, element: Any, line: _Line) -> None:
        """Put the first one of several contents that says something into a line: they say the same in other ways."""
        found: list[_Line] = []

        def texts(content: Any) -> list[str]:
            one = _Line()
            self._inline_at(part, content, one)
            found.append(one)
            blocks = [block for behind in one.behind for block in behind()]
            one.behind = [lambda: blocks]
            return [*one.text, *(block.text for block in blocks)]

        if alternative(element, texts):
            line.text += found[-1].text
            line.behind += found[-1].behind

    @staticmethod
    def _tell(texts: Iterable[str], line: _Line) -> None:
        """Have paragraphs stand behind a line, those that do not stand there yet."""
        blocks = [Block(text) for text in texts if text.strip()]
        if blocks:
            line.behind.append(lambda: blocks)

    def _drawing(self, part: str) -> Drawing:
        if part not in self._drawings:
            self._drawings[part] = Drawing(self._package, part, "")
        return self._drawings[part]

    def _refer(self, kind: str, number: str, line: _Line) -> None:
        if (kind, number) not in self._notes:
            return
        if kind == "comment":
            line.behind.append(lambda: self._note(kind, number, ""))
            return
        self._marks += 1
        mark = f"[{self._marks}]"
        line.text.append(mark)
        line.behind.append(lambda: self._note(kind, number, mark))

    def _note(self, kind: str, number: str, mark: str) -> Iterator[Block]:
        """Yield a note, where it was not read before."""
        part, note = self._notes.pop((kind, number), ("", None))
        if note is None:
            return
        said = list(self.blocks(part, note))
        text = "\n".join(block.text for block in said if block.text.strip())
        author = attribute(note, "author") or ""
        head = mark or f"[{kind}{f' of {author}' if author else ''}]"
        if text.strip():
            yield Block(f"{head} {text.strip()}")

    def _is_heading(self, element: Any) -> bool:
        properties = child_at(element, "pPr")
        if properties is None:
            return False
        level, style = child_at(properties, "outlineLvl"), child_at(properties, "pStyle")
        if level is not None:
            return (attribute(level, "val") or "9") in "012345678"
        return style is not None and (attribute(style, "val") or "") in self._headings

    def _leave_out(self, element: Any, what: str) -> None:
        if any((one.text or "").strip() for one in element.iter() if local(one.tag) in ("t", "delText")):
            self._outline.leave_out(what)


def _headings(package: OfficePackage, main: str) -> set[str]:
    """Return the ids of the styles of headings: by their names, and by the level that they or their bases have."""
    found: set[str] = set()
    bases: dict[str, str] = {}
    for part in package.related(main, "styles"):
        root = package.tree(part, "styles")
        for style in () if root is None else children(root, "style"):
            known = attribute(style, "styleId") or ""
            name, level, base = (child_at(style, *path) for path in (("name",), ("pPr", "outlineLvl"), ("basedOn",)))
            named = "" if name is None else (attribute(name, "val") or "").lower()
            if named.startswith(("heading", "title")) or (level is not None and attribute(level, "val") != "9"):
                found.add(known)
            elif base is not None and level is None:
                bases[known] = attribute(base, "val") or ""
    for style_id in bases:
        steps, at = 0, style_id
        while at in bases and steps < 20:
            at, steps = bases[at], steps + 1
        if at in found:
            found.add(style_id)
    return found


def _symbol(element: Any) -> str:
    try:
        return symbol(int(attribute(element, "char") or "", 16), attribute(element, "font") or "")
    except ValueError:
        return ""


def _chosen(element: Any) -> str:
    """Return the entry of a list of a form that is chosen."""
    entries = [attribute(entry, "val") or "" for entry in children(element, "listEntry")]
    stated = [child_at(element, name) for name in ("result", "default")]
    at = next((attribute(one, "val") or "0" for one in stated if one is not None), "0")
    return entries[int(at)] if at.isdecimal() and int(at) < len(entries) else ""
