"""Zips of XML: their parts, and what of them cannot be read; and names of elements, without their namespaces."""

from __future__ import annotations

import functools
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any

from everlong.files import archive
from everlong.files.document import NoTextError, PassedOverError

UNPACKING_ERRORS = (*(KeyError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, OSError, EOFError),)
_NO_MEMORY = 2  # libxml2's number of that error
_STEP = 1 << 18  # bytes that are unpacked at once
_PARSING = {"resolve_entities": False, "no_network": True, "load_dtd": False, "huge_tree": False}
_CLEAN = {"remove_comments": True, "remove_pis": True}


class DamagedPartError(Exception):
    """A part is damaged. The message says how."""


class Package:
    """A zip of parts, opened. What of it cannot be read is put into `passed_over`."""

    def __init__(self, data: bytes) -> None:
        self._zip = archive.opened(data)
        self._names = {_key(name): name for name in reversed(self._zip.namelist())}
        self.passed_over: list[PassedOverError] = []

    def __contains__(self, part: str) -> bool:
        return _key(part) in self._names

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

    def elements(self, part: str, *names: str) -> Iterator[Any]:
        """Yield the elements of such names in a part as they are read, and drop each one behind that.

        Raises DamagedPartError at the end where the part is damaged. What can be read of it is yielded before.
        """
        from lxml import etree

        tags, done, broken = [f"{{*}}{name}" for name in names], 0, ""
        for recover in (False, True):
            try:
                with self.open(part) as member:
                    found = etree.iterparse(member, events=("end",), tag=tags, recover=recover, **_PARSING, **_CLEAN)
                    for number, (_, element) in enumerate(found, 1):
                        if number > done:
                            yield element
                            done = number
                        element.clear()
                        while element.getprevious() is not None:
                            del element.getparent()[0]
                break
            except etree.XMLSyntaxError as error:
                _raise_without_memory(error)
                broken = broken or f"it is no whole XML: {error}"
            except UNPACKING_ERRORS as error:
                broken = broken or f"it cannot be unpacked: {error}"
        if broken:
            raise DamagedPartError(broken)

    def _unpacked(self, part: str) -> tuple[bytes, str]:
        """Return a part up to where it is damaged, and what is wrong."""
        pieces: list[bytes] = []
        try:
            with self.open(part) as member:
                while piece := member.read(_STEP):
                    pieces.append(piece)
        except KeyError:
            return b"", "it is missing"
        except UNPACKING_ERRORS as error:
            return b"".join(pieces), f"it cannot be unpacked: {error}"
        return b"".join(pieces), "" if pieces else "it is empty"

    def refuse_if_empty(self, *found: Sequence[object]) -> None:
        """Raise NoTextError where a package is damaged, and nothing of it was found."""
        if self.passed_over and not any(found):
            raise NoTextError("; ".join(f"{one.name} {one}" for one in self.passed_over[:3]))

    def leave_out(self, place: str, why: str) -> None:
        """Note what is not read."""
        self.passed_over.append(PassedOverError(place, why))


def parsed(data: bytes) -> tuple[Any | None, str]:
    """Return the root of XML, of as much as can be read, and what is wrong with it; "" for nothing."""
    from lxml import etree

    try:
        return etree.fromstring(data, etree.XMLParser(**_PARSING, **_CLEAN)), ""
    except etree.XMLSyntaxError as error:
        _raise_without_memory(error)
        why = f"it is no whole XML: {error}"
    try:
        return etree.fromstring(data, etree.XMLParser(recover=True, **_PARSING, **_CLEAN)), why
    except etree.XMLSyntaxError as error:
        _raise_without_memory(error)
        return None, why


def _raise_without_memory(error: Any) -> None:
    """libxml2 tells of a limit of RAM as of broken XML."""
    if error.code == _NO_MEMORY:
        raise MemoryError


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
