"""Office files, written part by part as raw XML, and what everlong reads of them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from everlong.files.content import documents_in
from everlong.files.document import Document
from support.made_files import zip_of

RELATIONSHIPS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
NAMESPACES = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
    'xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" '
    'xmlns:dgm="http://schemas.openxmlformats.org/drawingml/2006/diagram" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
    'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape" '
    'xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing" '
    'xmlns:v="urn:schemas-microsoft-com:vml" '
    f'xmlns:r="{RELATIONSHIPS}"'
)
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
STRICT = {
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main": "http://purl.oclc.org/ooxml/wordprocessingml/main",
    "http://schemas.openxmlformats.org/presentationml/2006/main": "http://purl.oclc.org/ooxml/presentationml/main",
    "http://schemas.openxmlformats.org/drawingml/2006/main": "http://purl.oclc.org/ooxml/drawingml/main",
    SHEET: "http://purl.oclc.org/ooxml/spreadsheetml/main",
    RELATIONSHIPS: "http://purl.oclc.org/ooxml/officeDocument/relationships",
}
_TYPES = "application/vnd.openxmlformats-officedocument."
WORD, SLIDES, SHEETS = (
    f"{_TYPES}{kind}.main+xml"
    for kind in ("wordprocessingml.document", "presentationml.presentation", "spreadsheetml.sheet")
)


def package(
    parts: Mapping[str, str | bytes], related: Mapping[str, Sequence[tuple[str, str]]], kind: str, strict: bool = False
) -> bytes:
    """A package whose first part is the document. `related`: kinds and targets of each part's relationships, which are
    rId1, rId2 and so on."""
    main = next(iter(parts))
    members: dict[str, str | bytes] = {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        f'<Override PartName="/{main}" ContentType="{kind}"/></Types>'
    }
    for part, those in ({"": [("officeDocument", main)]} | dict(related)).items():
        folder, _, name = part.rpartition("/")
        listed = f"{folder}/_rels/{name}.rels" if folder else f"_rels/{name}.rels"
        one = "".join(
            f'<Relationship Id="rId{number}" Type="{RELATIONSHIPS}/{what}" Target="{target}"/>'
            for number, (what, target) in enumerate(those, 1)
        )
        members[listed] = f'<Relationships xmlns="http://x">{one}</Relationships>'
    members |= parts
    if strict:
        for name, data in members.items():
            for was, now in STRICT.items():
                data = data.replace(was, now) if isinstance(data, str) else data
            members[name] = data
    return zip_of(members)


def word_file(
    body: str,
    parts: Mapping[str, str | bytes] | None = None,
    related: Sequence[tuple[str, str]] = (),
    strict: bool = False,
) -> bytes:
    """A text of Word. Targets of relationships are beside the document."""
    document = f"<w:document {NAMESPACES}><w:body>{body}</w:body></w:document>"
    return package({"word/document.xml": document} | dict(parts or {}), {"word/document.xml": related}, WORD, strict)


@dataclasses.dataclass(frozen=True)
class Read:
    """What is read of a file."""

    documents: tuple[Document, ...]
    passed_over: Mapping[str, str]

    @property
    def text(self) -> str:
        return "".join(document.text for document in self.documents)

    @property
    def words(self) -> list[str]:
        """Those that tests number: w0, w1 and so on."""
        return re.findall(r"w\d+", self.text)

    @property
    def places(self) -> Iterator[tuple[str, str]]:
        return ((section.place, section.text.strip()) for one in self.documents for section in one.sections)


def read(data: bytes, suffix: str = "") -> Read:
    """Read a file in this process: a child takes a while, and other tests start one."""
    found = list(documents_in(data, suffix))
    documents = tuple(one for one in found if isinstance(one, Document))
    return Read(documents, {one.name: str(one) for one in found if not isinstance(one, Document)})


def random_trees(around: list[str], container: str) -> st.SearchStrategy[list[Any]]:
    """Draw blocks of a document: lines of runs, boxes within lines, tables, and one more kind of `container`.

    A run is ("run", None), or lies in one of `around`. Each is a pair of its kind and of what lies within it.
    """
    runs: st.SearchStrategy[tuple[str, Any]] = st.recursive(
        st.just(("run", None)),
        lambda inner: st.tuples(st.sampled_from(around), st.lists(inner, min_size=1, max_size=3)),
        max_leaves=5,
    )
    return st.recursive(
        st.lists(st.tuples(st.just("line"), st.lists(runs, max_size=3)), min_size=1, max_size=3),
        lambda inner: st.lists(
            st.one_of(
                st.tuples(st.just("line"), st.lists(runs | st.tuples(st.just("box"), inner), max_size=3)),
                st.tuples(st.just(container), inner),
                st.tuples(st.just("table"), st.lists(st.lists(inner, min_size=1, max_size=2), min_size=1, max_size=2)),
            ),
            min_size=1,
            max_size=3,
        ),
        max_leaves=6,
    )
