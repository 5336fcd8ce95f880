"""Workbooks of Excel: a section a row, of what its cells show, with the comments on them.

The names of columns stand before their values: those of a table that the sheet states, and otherwise those of a row
that looks like one. Hidden sheets are read, and called so. A formula that nobody has computed is read as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from everlong.files.document import Document, Inner, PassedOverError, Section, cleaned, filled, line_of
from everlong.office.drawing import Drawing
from everlong.office.headed_rows import Cell, HeadedRows, Table
from everlong.office.number_formats import BUILT_IN, formatted, general
from everlong.office.ooxml import OfficePackage, relationship_id
from everlong.office.package import (
    UNPACKING_ERRORS,
    DamagedPartError,
    attribute,
    child_at,
    children,
    damage,
    local,
    parsed,
)

_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_REFERENCE = re.compile(r"\$?([A-Za-z]{1,3})\$?(\d{1,7})")
_PAGE_CODES = re.compile(r'&(?:"[^"]*"|\d+|K[0-9A-Fa-f]{6}|[A-Za-z+-])')
_INTEGER = re.compile(r"-?\d{1,30}")


def read(data: bytes, suffix: str) -> Iterator[Document | Inner | PassedOverError]:
    """Yield the workbook, its sheets one after the other, and the files within it."""
    package = OfficePackage(data)
    main = package.main_part()
    root = package.tree(main, "the workbook")
    book = _Book(package, main, root)
    sections: list[Section] = []
    inner: list[Inner] = []
    listed = [] if root is None else children(root, "sheets")
    for sheet in (sheet for sheets in listed for sheet in children(sheets, "sheet")):
        found = package.relationships(main).get(relationship_id(sheet))
        hidden = attribute(sheet, "state") in ("hidden", "veryHidden")
        name = line_of(_unescaped(attribute(sheet, "name") or "")) + (" (hidden sheet)" if hidden else "")
        if found is None or found.target not in package:
            package.leave_out(name, "is missing")
            continue
        rows = list(_Sheet(book, found.target, name).sections())
        sections += [Section("", f"{name}\n\n"), *rows, Section("", "\n")] if rows else []
        inner += package.inner_files(found.target, name)
    inner += package.inner_files(main, "")
    package.refuse_if_empty(filled(sections), inner)
    yield Document(filled(sections), **package.properties())
    yield from inner
    yield from package.passed_over


class _Book:
    """What the sheets of a workbook share."""

    def __init__(self, package: OfficePackage, main: str, root: Any) -> None:
        self.package = package
        properties = None if root is None else child_at(root, "workbookPr")
        self.from_1904 = properties is not None and attribute(properties, "date1904") in ("1", "true", "on")
        self.formats = _formats(package, main)
        self.people = _people(package, main)
        self.strings: list[str] = []
        for part in package.related(main, "sharedStrings"):
            try:
                self.strings += map(_rich_text, package.elements(part, "si"))
            except DamagedPartError as error:
                package.leave_out("shared strings", damage(str(error), bool(self.strings)))


class _Sheet:
    """One sheet: its rows, and what hangs on their cells."""

    def __init__(self, book: _Book, part: str, name: str) -> None:
        self._book, self._part, self._name = book, part, name
        self._formulas: dict[str, tuple[str, str]] = {}  # that cells share: text, and the cell where it is written
        self._missing = 0
        self._comments = _comments(book, part, name)

    def sections(self) -> Iterator[Section]:
        """Yield the sections of the sheet: rows, comments on cells of no row, then shapes and charts."""
        package, rows = self._book.package, HeadedRows(_tables(self._book.package, self._part, self._name))
        number = 0
        behind: list[str] = []
        inputs: dict[str, None] = {}
        try:
            for element in package.elements(self._part, "row", "headerFooter", "dataValidation"):
                if local(element.tag) == "headerFooter":
                    behind += self._page_texts(element)
                    continue
                if local(element.tag) == "dataValidation":
                    inputs |= dict.fromkeys(_input_texts(element))
                    continue
                stated = element.get("r", "")
                number = int(stated) if stated.isdecimal() and len(stated) < 8 else number + 1
                for done, line in rows.add(number, self._cells(element)):
                    yield self._row(done, line)
        except DamagedPartError as error:
            package.leave_out(self._name, damage(str(error), some=number > 0))
        for done, line in rows.end():
            yield self._row(done, line)
        if self._missing:
            package.leave_out(self._name, f"{self._missing} texts of cells are missing in the shared strings")
        for done in sorted(self._comments):
            yield self._row(done, "")
        yield from (Section(f"{self._name}, shapes", cleaned(text) + "\n") for text in self._shapes())
        yield from (Section(f"{self._name}, input", cleaned(text) + "\n") for text in inputs)
        yield from (Section(f"{self._name}, header and footer", cleaned(text) + "\n") for text in behind)

    def _row(self, number: int, line: str) -> Section:
        lines = [line] if line else []
        lines += self._comments.pop(number, [])
        return Section(f"{self._name}, row {number}", "\n".join(lines) + "\n")

    def _cells(self, row: Any) -> dict[int, Cell]:
        """Return the cells of a row that show something, by their columns from 1 on."""
        found: dict[int, Cell] = {}
        column = 0
        for element in row:
            if local(element.tag) != "c":
                continue
            reference = element.get("r")
            column = _column(reference or "") or column + 1
            cell = self._cell(element, reference or "")
            if cell is not None and column in found:  # in a damaged sheet
                found[column] = Cell(f"{found[column].text} {cell.text}", is_text=True)
            elif cell is not None:
                found[column] = cell
        return found

    def _cell(self, element: Any, reference: str) -> Cell | None:
        kind = element.get("t", "n")
        value = formula = inline = None
        for child in element:
            name = local(child.tag)
            if name == "v":
                value = child.text
            elif name == "f":
                formula = child
            elif name == "is":
                inline = child
        if formula is not None:
            written = self._formula(formula, reference)
            if not value and kind != "str":
                return Cell(written) if written else None
        if inline is not None:
            text, is_text = _rich_text(inline), True
        elif not value:
            return None
        else:
            text, is_text = self._value(value, kind, element.get("s", "0"))
        text = " ".join(cleaned(text).split())
        return Cell(text, is_text) if text else None

    def _value(self, value: str, kind: str, style: str) -> tuple[str, bool]:
        """Return what a cell shows, and whether that is text."""
        if kind == "s":
            at = int(value) if value.strip().isdecimal() and len(value) < 12 else -1
            if 0 <= at < len(self._book.strings):
                return self._book.strings[at], True
            self._missing += 1
            return "", True
        if kind == "str":
            return _unescaped(value), True
        if kind == "b":
            return ("FALSE" if value.strip() in ("0", "false") else "TRUE"), False
        if kind != "n":
            return value, kind == "inlineStr"
        shape = self._book.formats.get(style, "General")
        if shape in ("General", "0", "@") and _INTEGER.fullmatch(value):
            return value, False
        try:
            number = float(value)
            if shape == "General":
                return general(number), False
            return formatted(number, shape, from_1904=self._book.from_1904), False
        except (ValueError, OverflowError):
            return value, False

    def _formula(self, element: Any, reference: str) -> str:
        """Return a formula as it is written. One that cells share is written in the first of them."""
        text = (element.text or "").strip()
        shared = element.get("si") if element.get("t") == "shared" else None
        if text:
            if shared is not None:
                self._formulas[shared] = (text, reference)
            return f"={text}"
        if shared in self._formulas:
            text, first = self._formulas[shared or ""]
            return f"={text} (as in {first})"
        return ""

    def _page_texts(self, element: Any) -> Iterator[str]:
        for child in element:
            text = " ".join(_PAGE_CODES.sub(" ", (child.text or "").replace("&&", "\0")).replace("\0", "&").split())
            if text:
                yield text

    def _shapes(self) -> Iterator[str]:
        package = self._book.package
        for part in package.related(self._part, "drawing"):
            root = package.tree(part, f"{self._name}, shapes")
            if root is not None:
                yield from Drawing(package, part, self._name, values=False).texts(root)
        for part in package.related(self._part, "vmlDrawing", "legacyDrawing"):
            yield from _old_shapes(package, part)


def _input_texts(element: Any) -> Iterator[str]:
    """Yield what is shown to one who fills in a cell: hints, warnings, and a list of choices that is written there."""
    for pair in (("promptTitle", "prompt"), ("errorTitle", "error")):
        if said := ": ".join(text for name in pair if (text := element.get(name, "").strip())):
            yield _unescaped(said)
    choices = child_at(element, "formula1")
    text = "" if choices is None else (choices.text or "").strip()
    if element.get("type") == "list" and text.startswith('"'):
        yield text.strip('"').replace('""', '"')


def _old_shapes(package: OfficePackage, part: str) -> Iterator[str]:
    """Yield the texts of buttons and boxes of an older kind; comments are among them, and read elsewhere."""
    try:
        with package.open(part) as file:
            root, _ = parsed(file.read())  # such parts are seldom whole XML
    except UNPACKING_ERRORS:
        return
    for shape in () if root is None else root.iter():
        if local(shape.tag) == "shape" and not any(
            local(one.tag) == "ClientData" and one.get("ObjectType") == "Note" for one in shape
        ):
            text = " ".join(" ".join("".join(box.itertext()) for box in children(shape, "textbox")).split())
            if text:
                yield text


def _tables(package: OfficePackage, part: str, name: str) -> list[Table]:
    """Return where the tables of a sheet lie that it states as such."""
    found: list[Table] = []
    for target in package.related(part, "table"):
        root = package.tree(target, f"{name}, a table")
        if root is None or root.get("headerRowCount") == "0":
            continue
        first, _, last = (root.get("ref") or "").partition(":")
        corners = _REFERENCE.fullmatch(first), _REFERENCE.fullmatch(last or first)
        if corners[0] is not None and corners[1] is not None:
            (left, top), (right, bottom) = ((_column(corner[1]), int(corner[2])) for corner in corners if corner)
            found.append(Table(top, left, bottom, right))
    return found


def _comments(book: _Book, part: str, name: str) -> dict[int, list[str]]:
    """Return the comments on cells, by rows. One with answers has a copy of an older kind, which is left out."""
    package = book.package
    found: dict[int, list[tuple[int, str]]] = {}
    threaded: set[str] = set()

    def put(reference: str, author: str, text: str) -> None:
        place = _REFERENCE.fullmatch(reference)
        row = int(place[2]) if place else 0
        by = f" of {author}" if author else ""
        if text.strip():
            told = f"[comment on {reference}{by}] {cleaned(text).strip()}"
            found.setdefault(row, []).append((_column(reference), told))

    for target in package.related(part, "threadedComment"):
        root = package.tree(target, f"{name}, comments")
        for one in () if root is None else children(root, "threadedComment"):
            reference, text = one.get("ref", ""), child_at(one, "text")
            threaded.add(reference)
            put(reference, book.people.get(one.get("personId", ""), ""), "" if text is None else text.text or "")
    for target in package.related(part, "comments"):
        root = package.tree(target, f"{name}, comments")
        if root is None:
            continue
        authors = ["".join(one.itertext()) for listed in children(root, "authors") for one in listed]
        for listed in children(root, "commentList"):
            for one in children(listed, "comment"):
                reference, text, at = one.get("ref", ""), child_at(one, "text"), one.get("authorId", "")
                author = authors[int(at)] if at.isdecimal() and int(at) < len(authors) else ""
                if text is not None and reference not in threaded:
                    put(reference, author if not author.startswith("tc=") else "", _rich_text(text))
    return {row: [told for _, told in sorted(those, key=lambda one: one[0])] for row, those in found.items()}


def _people(package: OfficePackage, main: str) -> dict[str, str]:
    """Return the names of those who wrote comments, by their ids."""
    found: dict[str, str] = {}
    for part in package.related(main, "person"):
        root = package.tree(part, "persons")
        for one in () if root is None else root:
            found[one.get("id", "")] = line_of(one.get("displayName"))
    return found


def _formats(package: OfficePackage, main: str) -> dict[str, str]:
    """Return the formats of numbers by the numbers of cells' styles."""
    for part in package.related(main, "styles"):
        root = package.tree(part, "styles")
        if root is None:
            continue
        shapes = {str(number): shape for number, shape in BUILT_IN.items()}
        for listed in children(root, "numFmts"):
            shapes |= {one.get("numFmtId", ""): one.get("formatCode", "") for one in children(listed, "numFmt")}
        styles = [one for listed in children(root, "cellXfs") for one in children(listed, "xf")]
        return {str(at): shapes.get(one.get("numFmtId", "0"), "General") for at, one in enumerate(styles)}
    return {}


def _rich_text(element: Any) -> str:
    """Return the text of a string with its runs, without how it is pronounced."""
    if len(element) == 1 and local(element[0].tag) == "t":
        return _unescaped(element[0].text or "")
    pieces: list[str] = []
    for child in element:
        name = local(child.tag)
        if name == "t":
            pieces.append(child.text or "")
        elif name == "r":
            pieces += [one.text or "" for one in child if local(one.tag) == "t"]
    return _unescaped("".join(pieces))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


def _column(reference: str) -> int:
    """Return the column of a cell's name, from 1 on."""
    column = 0
    for letter in reference.upper():
        if not "A" <= letter <= "Z":
            break
        column = column * 26 + ord(letter) - 64
    return column
