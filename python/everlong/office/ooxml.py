"""Packages of Office Open XML: parts wherever they lie, by relationships and content types, with what cannot be read.

Transitional and strict files have other namespaces and the same names, so names are compared without namespaces.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
import urllib.parse
from collections.abc import Iterator
from typing import Any

from everlong.files.dates import seconds_of
from everlong.files.document import Inner, NoTextError, line_of
from everlong.office.package import Package, damage, local

_FILES = (b"PK\x03\x04", b"%PDF", b"{\\rtf")  # that an embedded object may be
_NOT_READ = {
    "vbaProject": "is a program",
    "control": "is a program",
    "glossaryDocument": "holds pieces of text to put in, which is not shown",
    "externalLink": "holds values of another workbook, which is not shown",
}
_MAIN = re.compile(r"\.main\+xml$", re.I)


@dataclasses.dataclass(frozen=True)
class Relationship:
    """What one part says of another one."""

    kind: str  # the last word of its type, as "footnotes"
    target: str  # the other part's name


class OfficePackage(Package):
    """A package of Office, opened."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._relationships: dict[str, dict[str, Relationship]] = {}

    def main_part(self) -> str:
        """Return the name of the part that holds the document itself."""
        for found in self.relationships("").values():
            if found.kind == "officeDocument" and found.target in self:
                return found.target
        types = self.tree("[Content_Types].xml", "content types")
        for one in () if types is None else types:
            if _MAIN.search(one.get("ContentType", "")) and one.get("PartName", "") in self:
                return str(one.get("PartName")).lstrip("/")
        fixed = ("word/document.xml", "ppt/presentation.xml", "xl/workbook.xml")
        found_name = next((name for name in fixed if name in self), None)
        if found_name is None:
            raise NoTextError("is damaged: it does not say which part of it is the document")
        return found_name

    def relationships(self, part: str) -> dict[str, Relationship]:
        """Return the relationships of a part to other parts by their ids; "" for those of the package itself."""
        if part not in self._relationships:
            folder, name = posixpath.split(part)
            listed = posixpath.join(folder, "_rels", f"{name}.rels")
            root = self.tree(listed, listed) if listed in self else None
            self._relationships[part] = {
                one.get("Id", ""): Relationship(one.get("Type", "").rpartition("/")[2], _target(folder, one))
                for one in (() if root is None else root)
                if one.get("TargetMode") != "External" and isinstance(one.tag, str)
            }
        return self._relationships[part]

    def related(self, part: str, *kinds: str) -> list[str]:
        """Return the names of the parts of such kinds that a part has, each once."""
        found = (one.target for one in self.relationships(part).values() if one.kind in kinds)
        return list(dict.fromkeys(found))

    def inner_files(self, part: str, place: str) -> Iterator[Inner]:
        """Yield the files that are embedded in a part, and note those that nobody reads."""
        for found in dict.fromkeys(self.relationships(part).values()):
            name = posixpath.basename(found.target)
            named = ", ".join(filter(None, (place, line_of(name))))
            if found.kind in ("package", "aFChunk", "oleObject"):
                data, why = self._unpacked(found.target)
                if why:
                    self.leave_out(named, damage(why, some=False))
                elif found.kind != "oleObject" or data.startswith(_FILES):
                    yield Inner(named, data, posixpath.splitext(name)[1].lower().removeprefix("."))
                else:
                    self.leave_out(named, "is an embedded object: it is not read")
            elif found.kind in _NOT_READ:
                self.leave_out(named, f"{_NOT_READ[found.kind]}: it is not read")

    def properties(self) -> dict[str, Any]:
        """Return title, author, and when it happened, as a Document takes them."""
        stated: dict[str, str] = {}
        for part in self.related("", "core-properties"):
            root = self.tree(part, "properties")
            stated |= {local(one.tag): one.text or "" for one in (() if root is None else root) if one.text}
        return {
            "title": line_of(stated.get("title")),
            "author": line_of(stated.get("creator")),
            "happened": seconds_of(stated.get("created") or stated.get("modified")),
        }


def relationship_id(element: Any, name: str = "id") -> str:
    """Return the id of the relationship that an element states."""
    return next((str(value) for key, value in element.attrib.items() if key.endswith("/relationships}" + name)), "")


def _target(folder: str, relationship: Any) -> str:
    stated = urllib.parse.unquote(relationship.get("Target", "")).replace("\\", "/")
    return posixpath.normpath(posixpath.join("/", folder, stated)).lstrip("/")
