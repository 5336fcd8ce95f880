"""Packages of Office Open XML: parts wherever they lie, by relationships and content types, with what cannot be read.

Transitional and strict files have other namespaces and the same names, so names are compared without namespaces.
"""

from __future__ import annotations

import dataclasses
import functools
import posixpath
import re
import urllib.parse
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

from everlong.files import archive
from everlong.files.dates import seconds_of
from everlong.files.document import Inner, NoTextError, PassedOverError, line_of

UNPACKING_ERRORS = (*(KeyError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, OSError, EOFError),)
_MAIN = re.compile(r"\.main\+xml$", re.I)
_STEP = 1 << 18  # bytes that are unpacked at once
_PARSING = {"resolve_entities": False, "no_network": True, "load_dtd": False, "huge_tree": False}
_CLEAN = {"remove_comments": True, "remove_pis": True}


@dataclasses.dataclass(frozen=True)
class Relationship:
    """What one part says of another one."""

    kind: str  # the last word of its type, as "footnotes"
    target: str  # the other part's name


class Package:
    """A package, opened. What of it cannot be read is put into `passed_over`."""

    def __init__(self, data: bytes) -> None:
        self._zip = archive.opened(data)
        self._names = {_key(name): name for name in reversed(self._zip.namelist())}
        self._relationships: dict[str, dict[str, Relationship]] = {}
        self.passed_over: list[PassedOverError] = []

    def __contains__(self, part: str) -> bool:
        return _key(part) in self._names

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

    def open(self, part: str) -> IO[bytes]:
        """Open a part. Raises one of UNPACKING_ERRORS, as reading does."""
        return self._zip.open(self._names[_key(part)])

    def tree(self, part: str, place: str) -> Any | None:
        """Return the root of a part, of as much as can be read; None for nothing."""
        data, why = self._unpacked(part)
        root, broken = parsed(data) if data else (None, "")
        if why or broken:
            self.leave_out(place, damage(why or broken, root is not None))
        if root is not None and root.getroottree().docinfo.internalDTD is not None:
            self.leave_out(place, "has a document type: what its entities stand for is not read")
        return root

    def _unpacked(self, part: str) -> tuple[bytes, str]:
        """Return a part up to where it is damaged, and what is wrong."""
        pieces: list[bytes] = []
        try:
            with self.open(part) as member:
                while piece := member.read(_STEP):
                    pieces.append(piece)
        except KeyError:
            return b"", "is missing"
        except UNPACKING_ERRORS as error:
            return b"".join(pieces), f"cannot be unpacked: {error}"
        return b"".join(pieces), "" if pieces else "is empty"

    def leave_out(self, place: str, why: str) -> None:
        """Note what is not read."""
        self.passed_over.append(PassedOverError(place, why))

    def inner_files(self, part: str, place: str) -> Iterator[Inner]:
        """Yield the files that are embedded in a part, and note those that nobody reads."""
        for found in dict.fromkeys(self.relationships(part).values()):
            name = posixpath.basename(found.target)
            named = ", ".join(filter(None, (place, line_of(name))))
            if found.kind in ("package", "aFChunk"):
                data, why = self._unpacked(found.target)
                if why:
                    self.leave_out(named, why)
                else:
                    yield Inner(named, data, posixpath.splitext(name)[1].lower().removeprefix("."))
            elif found.kind == "oleObject":
                self.leave_out(named, "is an embedded object: it is not read")
            elif found.kind in ("vbaProject", "control"):
                self.leave_out(named, "is a program: it is not read")

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


def parsed(data: bytes) -> tuple[Any | None, str]:
    """Return the root of XML, of as much as can be read, and what is wrong with it; "" for nothing."""
    from lxml import etree

    try:
        return etree.fromstring(data, etree.XMLParser(**_PARSING, **_CLEAN)), ""
    except etree.XMLSyntaxError as error:
        why = f"is no whole XML: {error}"
    try:
        return etree.fromstring(data, etree.XMLParser(recover=True, **_PARSING, **_CLEAN)), why
    except etree.XMLSyntaxError:
        return None, why


def elements(file: IO[bytes], *names: str) -> Iterator[Any]:
    """Yield the elements of such names as they are read, and drop each one behind that.

    Raises lxml's XMLSyntaxError or one of UNPACKING_ERRORS where the file is damaged, behind what could be read.
    """
    from lxml import etree

    for _, element in etree.iterparse(
        file, events=("end",), tag=[f"{{*}}{name}" for name in names], **_PARSING, **_CLEAN
    ):
        yield element
        element.clear()
        while element.getprevious() is not None:
            del element.getparent()[0]


def damage(why: str, some: bool) -> str:
    """Return what is said of a damaged part, of which some could be read, or nothing."""
    return f"is damaged, and only read in part: {why}" if some else f"is damaged: {why}"


@functools.cache
def local(tag: object) -> str:
    """Return the name of an element without its namespace; "" for what is no element, as an entity."""
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def attribute(element: Any, name: str) -> str | None:
    """Return an attribute of any namespace but that of relationships."""
    found = element.get(name)
    if found is None:
        for key, value in element.attrib.items():
            if key.endswith("}" + name) and not key.endswith("/relationships}" + name):
                return str(value)
    return None if found is None else str(found)


def relationship_id(element: Any, name: str = "id") -> str:
    """Return the id of the relationship that an element states."""
    return next((str(value) for key, value in element.attrib.items() if key.endswith("/relationships}" + name)), "")


def children(element: Any, name: str) -> list[Any]:
    """Return the children of a name."""
    return [child for child in element if local(child.tag) == name]


def child_at(element: Any, *path: str) -> Any | None:
    """Return the first child of the first name, its first child of the second one, and so on."""
    for name in path:
        if element is not None:
            element = next((child for child in element if local(child.tag) == name), None)
    return element


def _key(part: str) -> str:
    """Names of parts are alike but for the case of their letters."""
    return part.lstrip("/").replace("\\", "/").lower()


def _target(folder: str, relationship: Any) -> str:
    stated = urllib.parse.unquote(relationship.get("Target", "")).replace("\\", "/")
    return posixpath.normpath(posixpath.join("/", folder, stated)).lstrip("/")
