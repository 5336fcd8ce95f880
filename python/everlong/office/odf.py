"""OpenDocument: texts, sheets, slides and drawings, in a package or flat, by their whole tree.

Notes, comments and text boxes stand behind the paragraph that they hang on. Headers and footers of pages are the last
sections. Deleted text is not read, and named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from everlong.files.dates import seconds_of
from everlong.files.document import Document, NoTextError, PassedOverError, Section, filled, line_of
from everlong.office.headed_rows import Cell, HeadedRows
from everlong.office.outline import Block, Outline, on_one_line, row_of
from everlong.office.package import Package, attribute, child_at, children, damage, local, parsed

_SPACES = re.compile(r"[ \t\r\n]+")
_MOST_SPACES = 1000
_MOST_ROWS = 100  # that a repeated row is written
_MOST_CELLS = 1000  # that a repeated cell is written in its row
_MOST_LETTERS = 1 << 20  # of all of those
_SILENT = ("index-title-template", "script", "scripts", "event-listeners", "binary-data", "change-info", "dde-source")
_OF_THE_PAGE = ("page-number", "page-count", "sheet-name")  # fields that say another thing on each page
_BODIES = ("text", "spreadsheet", "presentation", "drawing", "chart", "image", "database")
_VALUES = ("string-value", "date-value", "time-value", "boolean-value", "value")


def read(data: bytes, suffix: str) -> Iterator[Document | PassedOverError]:
    """Yield the document. NoTextError for one that is encrypted."""
    outline = Outline()
    package: Package | None = None
    if data[:2] == b"PK":
        package = Package(data)
        _refuse_encrypted(package)
        roots = [
            package.tree(name, line_of(name)) for name in ("content.xml", "styles.xml", "meta.xml") if name in package
        ]
        broken = package.passed_over
    else:
        root, why = parsed(data)
        roots, broken = [root], [PassedOverError("the text", damage(why, root is not None))] if why else []
    reader = _Reader(package, outline)
    whole = [root for root in roots if root is not None]
    sections: list[Section] = []
    for root in whole:
        for body in children(root, "body"):
            stated = [content for content in body if local(content.tag) in _BODIES]
            for content in stated or [body]:
                sections += reader.content(content)
    for root in whole:
        for masters in children(root, "master-styles"):
            sections += reader.masters(masters)
    if not sections and (broken or not whole):
        raise NoTextError("; ".join(f"{one.name} {one}" for one in broken) or "is damaged: it has no content")
    yield Document(filled(sections), **_about(whole))
    yield from outline.passed_over()
    yield from broken


def _refuse_encrypted(package: Package) -> None:
    root = package.tree("META-INF/manifest.xml", "manifest") if "META-INF/manifest.xml" in package else None
    hidden = {
        attribute(entry, "full-path")
        for entry in (() if root is None else root)
        if child_at(entry, "encryption-data") is not None
    }
    if "content.xml" in hidden or "encrypted-package" in package:
        raise NoTextError("is encrypted: save it without a password")
    for name in sorted(filter(None, hidden)):
        package.leave_out(line_of(name), "is encrypted")


def _about(roots: Iterable[Any]) -> dict[str, Any]:
    stated: dict[str, str] = {}
    for root in roots:
        for about in children(root, "meta"):
            stated |= {local(one.tag): one.text for one in about if one.text}
    return {
        "title": line_of(stated.get("title")),
        "author": line_of(stated.get("initial-creator") or stated.get("creator")),
        "happened": seconds_of(stated.get("creation-date") or stated.get("date")),
    }


class _Line:
    """What a paragraph says, and what stands behind it."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.behind: list[Callable[[], Iterable[Block]]] = []


class _Reader:
    """Reads the parts of a document. Each object within it is read once."""

    def __init__(self, package: Package | None, outline: Outline) -> None:
        self._package, self._outline = package, outline
        self._objects: set[str] = set()
        self._deleted: set[str] = set()  # ids of changes
        self._marks = 0
        self._with_values = True  # of charts: in a sheet they stand in cells
        self._on_a_page = False  # a header or a footer

    def content(self, content: Any) -> Iterator[Section]:
        """Yield the sections of what the body of a document is."""
        kind = local(content.tag)
        if kind == "spreadsheet":
            self._with_values = False
            yield from self._spreadsheet(content)
        elif kind in ("presentation", "drawing"):
            for number, page in enumerate(children(content, "page"), 1):
                self._outline.begin(f"{'slide' if kind == 'presentation' else 'page'} {number}")
                self._outline.add(self.blocks(page))
            self._outline.begin("slide master")
            stated = (_tidy(one.text) for one in content if local(one.tag).endswith("-decl"))
            self._outline.add(Block(text) for text in dict.fromkeys(stated) if text.strip())
        else:
            self._outline.add(self.blocks(content))
        for _ in self._deleted:  # those that no place in the text refers to
            self._outline.leave_out("deleted text")
        self._deleted.clear()
        yield from self._outline.sections()

    def masters(self, masters: Any) -> Iterator[Section]:
        """Yield headers and footers of pages, and what stands on every slide."""
        self._on_a_page = True
        told: set[str] = set()
        for page in children(masters, "master-page"):
            for part in page:
                kind = local(part.tag).partition("-")[0]
                if kind in ("header", "footer"):
                    self._outline.begin(f"page {kind}")
                elif kind == "notes" or (attribute(part, "class") or "footer") not in ("footer", "header"):
                    continue  # a place for a slide's own text
                else:
                    self._outline.begin("slide master")
                blocks = list(self.blocks([part]))
                text = "\n".join(block.text for block in blocks)
                if text not in told:
                    told.add(text)
                    self._outline.add([Block(text)])
        yield from self._outline.sections()

    def blocks(self, elements: Iterable[Any]) -> Iterator[Block]:
        """Yield the paragraphs and rows of elements."""
        for element in elements:
            yield from self._block(element)

    def _block(self, element: Any) -> Iterator[Block]:
        name = local(element.tag)
        if name in ("p", "h"):
            yield from self._paragraph(element, name == "h")
        elif name == "table":
            for row in _found(element, "table-row"):
                copies = _repeated(row, "number-rows-repeated")
                cells = [list(self.blocks(cell)) for cell in _found(row, "table-cell", "covered-table-cell")]
                for _ in range(min(copies, _MOST_ROWS)):
                    yield from row_of(cells)
                if copies > _MOST_ROWS and any(cells):
                    self._outline.leave_out(f"a row that is repeated {copies:,} times, behind {_MOST_ROWS} times")
        elif name == "tracked-changes":
            self._note_deleted(element)
        elif name == "annotation" and "math" not in element.tag.lower():
            yield from self._comment(element, "")
        elif name in ("title", "desc") and (text := _tidy("".join(element.itertext()))).strip():
            yield Block(text.strip())
        elif name == "math":
            yield Block(_formula(element))
        elif name in ("object", "object-ole"):
            yield from self._object(element, name)
        elif name == "forms":
            yield from _labels(element)
        elif name not in _SILENT and not name.endswith("-source"):
            yield from self.blocks(element)

    def _paragraph(self, element: Any, heading: bool) -> Iterator[Block]:
        line = _Line()
        self._inline_at(element, line)
        text = "".join(line.text).strip(" ")
        yield Block(text, heading=heading and bool(text.strip()))
        for behind in line.behind:
            yield from behind()

    def _inline_at(self, element: Any, line: _Line) -> None:
        line.text.append(_tidy(element.text))
        for child in element:
            self._inline(child, line)
            line.text.append(_tidy(child.tail))

    def _inline(self, element: Any, line: _Line) -> None:
        name = local(element.tag)
        if name == "s":
            line.text.append(" " * min(_repeated(element, "c"), _MOST_SPACES))
        elif name == "tab":
            line.text.append("\t")
        elif name == "line-break":
            line.text.append("\n")
        elif name == "note":
            self._refer(element, line)
        elif name == "annotation":
            line.behind.append(lambda: self._comment(element, ""))
        elif name == "change":
            self._gone(attribute(element, "change-id") or "")
        elif name == "ruby":
            for part, before, after in (("ruby-base", "", ""), ("ruby-text", "(", ")")):
                found = child_at(element, part)
                if found is not None:
                    line.text.append(before)
                    self._inline_at(found, line)
                    line.text.append(after)
        elif name in ("p", "h", "list", "table", "section") or "drawing" in element.tag or "dr3d" in element.tag:
            line.behind.append(lambda: self._block(element))
        elif name and name not in _SILENT and not (self._on_a_page and name in _OF_THE_PAGE):
            self._inline_at(element, line)

    def _refer(self, note: Any, line: _Line) -> None:
        self._marks += 1
        mark = f"[{self._marks}]"
        line.text.append(mark)

        def paragraphs() -> Iterator[Block]:
            body = child_at(note, "note-body")
            text = "\n".join(block.text for block in self.blocks(() if body is None else body) if block.text.strip())
            if text:
                yield Block(f"{mark} {text}")

        line.behind.append(paragraphs)

    def _comment(self, element: Any, on: str) -> Iterator[Block]:
        author = child_at(element, "creator")
        by = f" of {line_of(author.text)}" if author is not None and author.text else ""
        said = self.blocks(child for child in element if local(child.tag) not in ("creator", "date", "date-string"))
        text = "\n".join(block.text for block in said if block.text.strip())
        if text:
            yield Block(f"[comment{on}{by}] {text}")

    def _object(self, element: Any, name: str) -> Iterator[Block]:
        """Yield what a formula, a chart or a document says that is embedded."""
        yield from self.blocks(element)
        stated = (attribute(element, "href") or "").removeprefix("./").strip("/")
        if not stated or self._package is None or stated in self._objects:
            return
        self._objects.add(stated)
        part = f"{stated}/content.xml"
        if part not in self._package:
            self._outline.leave_out("an embedded object")
            return
        root = self._package.tree(part, ", ".join(filter(None, (self._outline.place, line_of(stated)))))
        if root is None:
            return
        if local(root.tag) == "math":
            yield Block(_formula(root))
        elif not self._with_values and any(local(one.tag) == "chart" for one in root.iter()):
            yield from (
                one for title in root.iter() if local(title.tag) in ("title", "subtitle") for one in self.blocks(title)
            )
        else:
            yield from self.blocks(child for child in root if local(child.tag) == "body")

    def _note_deleted(self, element: Any) -> None:
        """Note deletions until a place in the text refers to them, and what cells said before."""
        for region in element.iter():
            name = local(region.tag)
            if name == "changed-region" and (gone := child_at(region, "deletion")) is not None and _says(gone):
                self._deleted.add(attribute(region, "id") or "")
            elif name == "previous" and _says(region):
                self._outline.leave_out("what a cell said before")
            elif name == "deletion" and local(region.getparent().tag) != "changed-region" and _says(region):
                self._outline.leave_out("deleted cells")

    def _gone(self, change: str) -> None:
        if change in self._deleted:
            self._deleted.discard(change)
            self._outline.leave_out("deleted text")

    def _spreadsheet(self, content: Any) -> Iterator[Section]:
        hidden = {
            attribute(style, "name")
            for styles in children(content.getparent().getparent(), "automatic-styles")
            for style in children(styles, "style")
            if any(attribute(one, "display") == "false" for one in children(style, "table-properties"))
        }
        for element in content:
            if local(element.tag) != "table":
                self._outline.begin("")
                self._outline.add(self._block(element))
                continue
            name = line_of(attribute(element, "name")) or "sheet"
            name += " (hidden sheet)" if attribute(element, "style-name") in hidden else ""
            self._outline.begin(name)
            rows = list(self._rows(element, name))
            if rows:
                yield from (Section("", f"{name}\n\n"), *rows, Section("", "\n"))

    def _rows(self, table: Any, name: str) -> Iterator[Section]:
        rows, number = HeadedRows(), 0
        for row in _found(table, "table-row"):
            copies = _repeated(row, "number-rows-repeated")
            cells, behind = self._cells(row, number + 1)
            for copy in range(min(copies, _MOST_ROWS) if cells or behind else 0):
                for done, line in rows.add(number + 1 + copy, cells):
                    yield Section(f"{name}, row {done}", line + "\n")
                for block in behind:
                    yield Section(f"{name}, row {number + 1 + copy}", block.text + "\n")
            if copies > _MOST_ROWS and (cells or behind):
                self._outline.leave_out(
                    f"row {number + 1}, which is repeated {copies:,} times, behind {_MOST_ROWS} times"
                )
            number += copies
        yield from (Section(f"{name}, row {done}", line + "\n") for done, line in rows.end())
        shapes = self.blocks(one for one in table if local(one.tag) in ("shapes", "title", "desc", "forms"))
        yield from (Section(f"{name}, shapes", block.text + "\n") for block in shapes if block.text.strip())

    def _cells(self, row: Any, number: int) -> tuple[dict[int, Cell], list[Block]]:
        """Return the cells of a row that show something, by their columns from 1 on, and the comments on them."""
        found: dict[int, Cell] = {}
        comments: list[Block] = []
        column, letters = 1, 0
        for element in _found(row, "table-cell", "covered-table-cell"):
            copies = _repeated(element, "number-columns-repeated")
            for one in children(element, "annotation"):
                comments += self._comment(one, f" on {_letters(column)}{number}")
            text = on_one_line(list(self.blocks(one for one in element if local(one.tag) != "annotation")))
            text = text or next((value for name in _VALUES if (value := attribute(element, name))), "")
            text = text or (attribute(element, "formula") or "").removeprefix("of:")
            if text.strip():
                kind = attribute(element, "value-type")
                cell = Cell(" ".join(text.split()), is_text=kind in (None, "string"))
                most = min(copies, _MOST_CELLS, 1 + _MOST_LETTERS // len(text))
                letters += most * len(text)
                if letters > 64 * _MOST_LETTERS:
                    most = 1
                found |= {column + copy: cell for copy in range(most)}
                if most < copies:
                    self._outline.leave_out(
                        f"row {number}: a cell that is repeated {copies:,} times, behind {most:,} times"
                    )
            column += copies
        return found, comments


def _found(element: Any, *wanted: str) -> Iterator[Any]:
    """Yield the rows of a table, or the cells of a row, through the groups that they may be in."""
    for child in element:
        name = local(child.tag)
        if name in wanted:
            yield child
        elif name.startswith("table-"):
            yield from _found(child, *wanted)


def _repeated(element: Any, name: str) -> int:
    stated = attribute(element, name) or ""
    return max(1, int(stated)) if stated.isdecimal() and len(stated) < 10 else 1


def _says(element: Any) -> bool:
    return any("".join(one.itertext()).strip() for one in element.iter() if local(one.tag) in ("p", "h"))


def _labels(element: Any) -> Iterator[Block]:
    """Yield what the fields of a form are called, and what stands in them."""
    for field in element.iter():
        said = [attribute(field, name) for name in ("label", "current-value")]
        text = ": ".join(dict.fromkeys(one for one in said if one and one.strip()))
        if text and local(field.tag):
            yield Block(text)


def _formula(element: Any) -> str:
    """Return what a formula says, with its fractions and powers."""
    name = local(element.tag)
    if name == "annotation":
        return ""
    parts = [_formula(child) for child in element]
    sign = {"mfrac": "/", "msup": "^", "msub": "_"}.get(name)
    if sign and len(parts) == 2:
        return sign.join(part if len(part) < 2 or part.isalnum() else f"({part})" for part in parts)
    return ("√" if name in ("msqrt", "mroot") else "") + (element.text or "").strip() + "".join(parts)


def _letters(column: int) -> str:
    found = ""
    while column:
        column, rest = divmod(column - 1, 26)
        found = chr(65 + rest) + found
    return found


def _tidy(text: str | None) -> str:
    return _SPACES.sub(" ", text) if text else ""
