"""Presentations of PowerPoint: a section a slide, of all its shapes, with its notes and the comments on it.

What stands on every slide of a layout or a master is one section at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everlong.files.document import Document, Inner, PassedOverError, Section, filled, line_of, paragraph
from everlong.office.drawing import Drawing, paragraphs
from everlong.office.ooxml import OfficePackage, relationship_id
from everlong.office.package import attribute, child_at, children, local


def read(data: bytes, suffix: str) -> Iterator[Document | Inner | PassedOverError]:
    """Yield the presentation, and the files within it. A damaged slide is passed over."""
    package = OfficePackage(data)
    main = package.main_part()
    root = package.tree(main, "the presentation")
    authors = _authors(package, main)
    sections: list[Section] = []
    inner: list[Inner] = []
    for number, slide in enumerate(
        (one for listed in ([] if root is None else children(root, "sldIdLst")) for one in listed), 1
    ):
        place = f"slide {number}"
        found = package.relationships(main).get(relationship_id(slide))
        if found is None or found.target not in package:
            package.leave_out(place, "is missing")
            continue
        sections.append(paragraph(place, "\n".join(_slide(package, found.target, place, authors))))
        inner += package.inner_files(found.target, place)
    masters = package.related(main, "slideMaster", "notesMaster", "handoutMaster")
    backgrounds = [*masters, *(layout for master in masters for layout in package.related(master, "slideLayout"))]
    common = dict.fromkeys(text for part in backgrounds for text in _background(package, part))
    sections.append(paragraph("slide master", "\n".join(common)))
    inner += package.inner_files(main, "")
    package.refuse_if_empty(filled(sections), inner)
    yield Document(filled(sections), **package.properties())
    yield from inner
    yield from package.passed_over


def _slide(package: OfficePackage, part: str, place: str, authors: dict[str, str]) -> Iterator[str]:
    root = package.tree(part, place)
    if root is not None:
        yield from Drawing(package, part, place).texts(root)
    for notes in package.related(part, "notesSlide"):
        root = package.tree(notes, f"{place}, notes")
        if root is not None:
            yield from Drawing(package, notes, f"{place}, notes").texts(root)
    for comments in package.related(part, "comments"):
        root = package.tree(comments, f"{place}, comments")
        if root is not None:
            yield from _comments(root, authors)


def _background(package: OfficePackage, part: str) -> Iterator[str]:
    """Yield what a layout or a master shows on its slides: what is no place for a slide's own text."""
    root = package.tree(part, "slide master")
    on_slides = root is not None and local(root.tag) not in ("notesMaster", "handoutMaster")
    shapes = None if root is None else child_at(root, "cSld", "spTree")
    for shape in () if shapes is None else shapes:
        places = [child_at(shape, name, "nvPr", "ph") for name in ("nvSpPr", "nvPicPr")]
        if all(one is None or (one.get("type") in ("hdr", "ftr") and not on_slides) for one in places):
            yield from Drawing(package, part, "slide master").texts(shape)


def _authors(package: OfficePackage, main: str) -> dict[str, str]:
    """Return the names of those who wrote comments, by their ids."""
    found: dict[str, str] = {}
    for part in package.related(main, "commentAuthors", "authors"):
        root = package.tree(part, "authors of comments")
        found |= {one.get("id", ""): line_of(one.get("name")) for one in (() if root is None else root)}
    return found


def _comments(element: Any, authors: dict[str, str]) -> Iterator[str]:
    """Yield comments, and answers to them."""
    for child in element:
        if local(child.tag) not in ("cm", "reply"):
            yield from _comments(child, authors)
            continue
        said = [one.text or "" for one in children(child, "text")]
        said += [text for body in children(child, "txBody") for text in paragraphs(body)]
        author = authors.get(attribute(child, "authorId") or "", "")
        if text := "\n".join(said).strip():
            yield f"[comment{f' of {author}' if author else ''}] {text}"
        yield from _comments(child, authors)
