"""DrawingML: what shapes, tables, charts and diagrams say, on slides, in sheets and in texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everlong.office.formula import formula_text
from everlong.office.number_formats import formatted
from everlong.office.ooxml import OfficePackage, relationship_id
from everlong.office.package import attribute, children, local

_SILENT = ("pPr", "rPr", "endParaRPr", "bodyPr", "lstStyle", "tblPr", "tblGrid", "tcPr", "extLst")
_PLACES = ("cat", "xVal")
_VALUES = ("val", "yVal", "bubbleSize")


class Drawing:
    """The texts of one part's shapes. Each chart and diagram is read once."""

    def __init__(self, package: OfficePackage, part: str, place: str, *, values: bool = True) -> None:
        self._package, self._part, self._place = package, part, place
        self._values = values  # of charts: in a workbook they stand in cells
        self._seen: set[str] = set()

    def texts(self, element: Any) -> Iterator[str]:
        """Yield what the shapes below an element say, a paragraph or a row of a table at a time."""
        name = local(element.tag)
        if name in ("txBody", "rich"):
            yield from paragraphs(element)
        elif name == "tbl":
            yield from self._rows(element)
        elif name == "AlternateContent":
            yield from alternative(element, self._all)
        elif name == "cNvPr":
            yield from description(element)
        elif name in ("chart", "relIds"):
            yield from self.related(element)
        elif name not in _SILENT:
            yield from self._all(element)

    def _all(self, element: Any) -> Iterator[str]:
        for child in element:
            yield from self.texts(child)

    def _rows(self, table: Any) -> Iterator[str]:
        for row in children(table, "tr"):
            cells = (" ".join(" ".join(self._all(cell)).split()) for cell in children(row, "tc") if not _spanned(cell))
            line = " | ".join(cells)
            if line.strip(" |"):
                yield line

    def related(self, element: Any) -> Iterator[str]:
        """Yield what the chart or the diagram says that an element refers to."""
        stated = relationship_id(element, "dm" if local(element.tag) == "relIds" else "id")
        found = self._package.relationships(self._part).get(stated)
        if found is not None:
            yield from self.part(found.target, "a chart" if local(element.tag) == "chart" else "a diagram")

    def part(self, part: str, what: str) -> Iterator[str]:
        """Yield what a part says that is a chart or a diagram."""
        if part in self._seen:
            return
        self._seen.add(part)
        root = self._package.tree(part, ", ".join(filter(None, (self._place, what))))
        if root is None:
            return
        if local(root.tag) == "chartSpace":
            yield from chart_texts(root, values=self._values)
            for drawn in self._package.related(part, "chartUserShapes"):
                yield from self.part(drawn, what)
        else:
            yield from paragraphs(root)


def paragraphs(element: Any) -> Iterator[str]:
    """Yield the paragraphs below an element, those that are not empty."""
    for child in element:
        if local(child.tag) == "p" and "drawingml" in child.tag:
            if (text := paragraph_text(child)).strip():
                yield text
        elif local(child.tag) == "AlternateContent":
            yield from alternative(child, paragraphs)
        else:
            yield from paragraphs(child)


def paragraph_text(element: Any) -> str:
    """Return what a paragraph says."""
    name = local(element.tag)
    if name == "t":
        return element.text or ""
    if name == "br":
        return "\n"
    if name == "oMath":
        return formula_text(element)
    if name == "AlternateContent":
        return "".join(alternative(element, lambda one: [paragraph_text(child) for child in one]))
    if name in _SILENT or (name == "fld" and attribute(element, "type") == "slidenum"):
        return ""
    return "".join(map(paragraph_text, element))


def alternative(element: Any, texts: Any) -> list[str]:
    """Return the texts of the first one of several contents that says something: they say the same in other ways."""
    for child in element:
        if local(child.tag) in ("Choice", "Fallback"):
            found: list[str] = list(texts(child))
            if any(text.strip() for text in found):
                return found
    return []


def description(element: Any) -> Iterator[str]:
    """Yield what is said of a picture, or of a shape, for those who do not see it."""
    for text in dict.fromkeys((element.get("title"), element.get("descr"))):
        if text and text.strip():
            yield " ".join(text.split())


def chart_texts(root: Any, *, values: bool) -> Iterator[str]:
    """Yield titles and labels of a chart, and a line for each of its series: its name, then its values."""
    for child in root:
        name = local(child.tag)
        if name == "ser" or (name == "data" and "chartex" in child.tag):
            yield from _series(child, values)
        elif name == "p" and "drawingml" in child.tag:
            if (text := paragraph_text(child)).strip():
                yield text
        elif name in ("strCache", "strLit") or (name == "txData" and "chartex" in child.tag):
            yield from filter(None, (" ".join(_points(child, [name])),))
        elif name == "AlternateContent":
            yield from alternative(child, lambda one: chart_texts(one, values=values))
        elif name not in ("txPr", "spPr", "externalData"):
            yield from chart_texts(child, values=values)


def _series(series: Any, values: bool) -> Iterator[str]:
    named = " ".join(text for tx in children(series, "tx") for text in _points(tx, ["tx"]))
    if local(series.tag) == "data":
        places, numbers = _points(series, ["strDim"]), _points(series, ["numDim"])
    else:
        places, numbers = _points(series, _PLACES), _points(series, _VALUES)
    if not values:
        told = ""
    elif len(places) == len(numbers):
        told = ", ".join(f"{place} {number}".strip() for place, number in zip(places, numbers, strict=True))
    else:
        told = ", ".join([*places, *numbers])
    if line := ": ".join(filter(None, (named, told))):
        yield line
    for child in series:
        if local(child.tag) in ("dLbls", "trendline", "errBars"):
            yield from chart_texts(child, values=values)


def _points(element: Any, below: Any) -> list[str]:
    """Return the points of an element's children of such names, or of itself, as they are shown."""
    found: list[str] = []
    for part in [element] if local(element.tag) in below else [c for c in element if local(c.tag) in below]:
        shape = next((one.text or "" for one in part.iter() if local(one.tag) == "formatCode"), "General")
        for one in part.iter():
            name = local(one.tag)
            if name == "v" or (name == "pt" and not len(one)):
                found.append(_formatted(one.text or "", shape))
    return found


def _formatted(value: str, shape: str) -> str:
    try:
        return formatted(float(value), shape)
    except ValueError:
        return value


def _spanned(cell: Any) -> bool:
    """Return whether a cell lies below its neighbour, which spans it, and says nothing itself."""
    spanned = cell.get("hMerge") in ("1", "true")
    return spanned and not any((one.text or "").strip() for one in cell.iter() if local(one.tag) == "t")
