"""OpenDocument is read by its whole tree: texts, sheets and slides, in a package or flat."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files.document import NoTextError
from everlong.files.parsing import Limits, parse
from support.examples import examples
from support.made_files import zip_of
from support.office_files import random_trees, read

NAMESPACES = (
    " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{what}:1.0"'
        for name, what in (
            *(("office", "office"), ("text", "text"), ("table", "table"), ("draw", "drawing"), ("style", "style")),
            *(("meta", "meta"), ("svg", "svg-compatible"), ("presentation", "presentation"), ("chart", "chart")),
            *(("manifest", "manifest"), ("form", "form")),
        )
    )
    + ' xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xlink="http://www.w3.org/1999/xlink"'
)
P = "<text:p>{}</text:p>"
W1 = P.format("w1")


def cell(text: str, kind: str = "string", more: str = "") -> str:
    return f"<table:table-cell office:value-type='{kind}' {more}>{text}</table:table-cell>"


def row(*cells: str, copies: int = 1) -> str:
    return f"<table:table-row table:number-rows-repeated='{copies}'>{''.join(cells)}</table:table-row>"


def table(*rows: str, more: str = "") -> str:
    return f"<table:table {more}>{''.join(rows)}</table:table>"


def odf(
    body: str,
    kind: str = "text",
    parts: Mapping[str, str] | None = None,
    styles: str = "",
    flat: bool = False,
    name: str = "",
) -> bytes:
    """A document of that kind. `styles`: automatic styles; `name`: the kind as its mimetype has it."""
    styles = f"<office:automatic-styles>{styles}</office:automatic-styles>"
    content = f"{styles}<office:body><office:{kind}>{body}</office:{kind}></office:body>"
    if flat:
        return f"<?xml version='1.0'?>\n<office:document {NAMESPACES}>{content}</office:document>".encode()
    members = {"mimetype": f"application/vnd.oasis.opendocument.{name or kind}"} | dict(parts or {})
    return zip_of(
        {"content.xml": f"<office:document-content {NAMESPACES}>{content}</office:document-content>"} | members
    )


LIST = "<text:list><text:list-item>{}</text:list-item></text:list>"
BOX = "<draw:frame><draw:text-box>{}</draw:text-box></draw:frame>"
WHERE_A_WORD_MAY_STAND = {
    "spans": "<text:p><text:span>w<text:span>1</text:span></text:span></text:p>",
    "a link": "<text:p><text:a xlink:href='x'>w1</text:a></text:p>",
    "a list in a list": LIST.format(LIST.format(W1)),
    "a section": f"<text:section>{W1}</text:section>",
    "a table in a table": table(
        f"<table:table-header-rows>{row(cell(table(row(cell(W1)))))}</table:table-header-rows>"
    ),
    "a box": f"<text:p>{BOX.format(W1)}</text:p>",
    "a box on a page": BOX.format(W1),
    "a shape in a group": f"<text:p><draw:g><draw:custom-shape>{W1}</draw:custom-shape></draw:g></text:p>",
    "a described picture": "<text:p><draw:frame><draw:image/><svg:desc>w1</svg:desc></draw:frame></text:p>",
    "ruby": "<text:p><text:ruby><text:ruby-base/><text:ruby-text>w1</text:ruby-text></text:ruby></text:p>",
    "a field": "<text:p><text:author-name>w1</text:author-name></text:p>",
    "a field of a form": "<office:forms><form:form><form:text form:current-value='w1'/></form:form></office:forms>",
    "a formula": "<draw:frame><draw:object><math xmlns='http://www.w3.org/1998/Math/MathML'><semantics><mi>w1</mi>"
    "<annotation>w9</annotation></semantics></math></draw:object></draw:frame>",
    "an index": f"<text:table-of-content><text:table-of-content-source><text:index-title-template>w9"
    f"</text:index-title-template></text:table-of-content-source><text:index-body>{W1}</text:index-body>"
    "</text:table-of-content>",
}


@pytest.mark.parametrize("where", WHERE_A_WORD_MAY_STAND)
@pytest.mark.parametrize("flat", [False, True])
def test_a_word_is_read_once_wherever_it_stands(where: str, flat: bool) -> None:
    found = read(odf(P.format("w0") + WHERE_A_WORD_MAY_STAND[where] + P.format("w2"), flat=flat))
    assert found.words == ["w0", "w1", "w2"]
    assert found.passed_over == {}


class Writer:
    """Writes a tree, and notes its words in the order in which they are to be read: boxes are behind their line."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def blocks(self, trees: Sequence[Any]) -> str:
        return "".join(map(self._block, trees))

    def _block(self, tree: tuple[str, Any]) -> str:
        kind, inner = tree
        if kind == "line":
            said = "".join(self._piece(one) for one in inner if one[0] != "box")
            return P.format(said + "".join(BOX.format(self.blocks(one[1])) for one in inner if one[0] == "box"))
        if kind == "list":
            return f"<text:list><text:list-item>{self.blocks(inner)}</text:list-item></text:list>"
        rows = ("".join(f"<table:table-cell>{self.blocks(cell)}</table:table-cell>" for cell in row) for row in inner)
        return f"<table:table>{''.join(f'<table:table-row>{row}</table:table-row>' for row in rows)}</table:table>"

    def _piece(self, tree: tuple[str, Any]) -> str:
        kind, inner = tree
        if kind == "run":
            self.words.append(f"w{len(self.words)}")
            return f"{self.words[-1]}<text:s/>\n"
        return f"<text:{kind}>{''.join(map(self._piece, inner))}</text:{kind}>"


TREES = random_trees(["span", "a", "meta"], "list")


@pytest.mark.slow
@examples(100)
@given(TREES, st.booleans())
def test_all_words_of_a_random_tree_come_back_in_order(trees: list[Any], flat: bool) -> None:
    writer = Writer()
    assert read(odf(writer.blocks(trees), flat=flat)).words == writer.words


def test_notes_and_comments_stand_behind_their_paragraph() -> None:
    cited = "<text:note-citation>1</text:note-citation>"
    note = f"<text:note>{cited}<text:note-body>{P.format('note')}</text:note-body></text:note>"
    about = "<dc:creator>Ada</dc:creator><dc:date>2024</dc:date>"
    comment = f"<office:annotation>{about}{P.format('comment')}</office:annotation>"
    body = f"<text:h>Part</text:h><text:p>one{note} two{comment} three</text:p>{P.format('four')}"
    assert list(read(odf(body)).places) == [
        ("Part", "Part\none[1] two three\n[1] note\n[comment of Ada] comment\nfour")
    ]


def test_spaces_are_those_that_are_shown() -> None:
    body = "\n  one   two<text:s text:c='3'/>three<text:tab/>four<text:line-break/>five<text:s text:c='9999999'/>end"
    (found,) = read(odf(P.format(body))).documents
    assert found.text.startswith("one two   three\tfour\nfive ")
    assert len(found.text) < 1100


def test_what_was_deleted_is_named_where_it_stood() -> None:
    region = (
        "<text:changed-region text:id='c{0}'><text:deletion><text:p>w{0}</text:p></text:deletion></text:changed-region>"
    )
    regions = "".join(map(region.format, (1, 2, 3)))
    body = (
        f"<text:tracked-changes>{regions}</text:tracked-changes>"
        "<text:h>One</text:h><text:p>a<text:change text:change-id='c1'/>b</text:p>"
        "<text:h>Two</text:h><text:p>c<text:change text:change-id='c2'/></text:p>"
    )
    found = read(odf(body))
    assert found.words == []
    assert list(found.passed_over) == ["One, deleted text", "Two, deleted text"]
    assert list(found.passed_over.values()) == ["is not read", "is not read, 2 times"]  # no place refers to one of them


def test_headers_masters_and_the_head_of_a_document_are_read() -> None:
    page = (
        f"<style:master-page><style:header>{P.format('top <text:page-number>7</text:page-number>')}</style:header>"
        f"<style:footer>{P.format('bottom')}</style:footer></style:master-page>"
    )
    masters = f"<office:master-styles>{page * 2}</office:master-styles>"
    about = (
        "<office:meta><dc:title>About</dc:title><meta:initial-creator>Ann</meta:initial-creator>"
        "<meta:creation-date>2016-04-05T00:00:00</meta:creation-date></office:meta>"
    )
    parts = {
        "styles.xml": f"<office:document-styles {NAMESPACES}>{masters}</office:document-styles>",
        "meta.xml": f"<office:document-meta {NAMESPACES}>{about}</office:document-meta>",
    }
    found = read(odf(P.format("words"), parts=parts))
    assert list(found.places) == [("", "words"), ("page header", "top"), ("page footer", "bottom")]
    (one,) = found.documents
    assert (one.title, one.author) == ("About", "Ann")
    assert one.happened == datetime.datetime(2016, 4, 5).timestamp()


def test_sheets_are_read_by_their_rows() -> None:
    comment = f"<office:annotation><dc:creator>Ada</dc:creator>{P.format('why')}</office:annotation>"
    sevens = cell("", "float", "office:value='7' table:number-columns-repeated='2'")
    rows = (
        row(cell(P.format("item")), cell(P.format("price"))),
        row("<table:table-cell table:number-columns-repeated='9'/>", copies=3),
        row(cell(P.format("lamp")), cell(comment + P.format("10 €"), "float", "office:value='10'")),
        row(sevens, copies=2),
        row(cell("", "float", "table:formula='of:=A1*2'")),
    )
    hidden = "<style:style style:name='ta2'><style:table-properties table:display='false'/></style:style>"
    chart = f"<chart:chart><chart:title>{P.format('sales')}</chart:title>{P.format('in cells')}</chart:chart>"
    inner = f"<office:document><office:body><office:chart>{chart}</office:chart></office:body></office:document>"
    shapes = f"<table:shapes><draw:object>{inner}</draw:object>{BOX.format(P.format('box'))}</table:shapes>"
    one = table(shapes, *rows, more="table:name='One'")
    body = one + table(row(cell(P.format("back"))), more="table:name='Two' table:style-name='ta2'")
    found = read(odf(body, "spreadsheet", styles=hidden))
    assert [one for one in found.places if one[0]] == [
        ("One, row 1", "item | price"),
        ("One, row 5", "item: lamp, price: 10 €"),
        ("One, row 5", "[comment on B5 of Ada] why"),
        *((f"One, row {row}", "item: 7, price: 7") for row in (6, 7)),
        ("One, row 8", "item: =A1*2"),
        ("One, shapes", "sales"),
        ("One, shapes", "in cells"),
        ("One, shapes", "box"),
        ("Two (hidden sheet), row 1", "back"),
    ]


def test_what_stands_on_every_slide_is_read() -> None:
    shapes = "".join(
        f"<draw:frame presentation:class='{name}'>{BOX.format(P.format(name))}</draw:frame>"
        for name in ("title", "footer")
    )
    page = f"<style:master-page>{shapes}<draw:custom-shape>{P.format('logo')}</draw:custom-shape></style:master-page>"
    masters = f"<office:master-styles>{page}</office:master-styles>"
    parts = {"styles.xml": f"<office:document-styles {NAMESPACES}>{masters}</office:document-styles>"}
    found = read(odf(f"<draw:page>{BOX.format(P.format('one'))}</draw:page>", "presentation", parts))
    assert "\n".join(said for _, said in found.places).split() == ["one", "footer", "logo"]


@pytest.mark.slow
def test_repeated_cells_are_bounded_and_named(tmp_path: Path) -> None:
    """A row that is repeated to the end of a sheet, of a cell that is repeated to its edge."""
    wide = cell(P.format("x" * 5000), "string", "table:number-columns-repeated='16384'")
    sheet = table(row(wide, copies=1048576), more="table:name='One'")
    (tmp_path / "a.ods").write_bytes(odf(sheet, "spreadsheet"))
    found = parse(tmp_path / "a.ods", Limits(seconds=60))
    assert 100 < found.documents[0].text.count("x" * 5000) < 100_000
    assert [name for name, _ in found.passed_over] == [
        "One, row 1: a cell that is repeated 16,384 times, behind 210 times",
        "One, row 1, which is repeated 1,048,576 times, behind 100 times",
    ]


def test_slides_are_read_with_their_notes_and_charts() -> None:
    said = f"<chart:title>{P.format('sales')}</chart:title>{table(row(cell(P.format('East')), cell(P.format('4'))))}"
    body = f"<office:body><office:chart><chart:chart>{said}</chart:chart></office:chart></office:body>"
    chart = f"<office:document-content {NAMESPACES}>{body}</office:document-content>"
    frame = "<draw:frame><draw:object xlink:href='./Object 1'/></draw:frame>"
    notes = f"<presentation:notes>{BOX.format(P.format('notes'))}</presentation:notes>"
    body = f"<draw:page>{BOX.format(P.format('one'))}{notes}</draw:page><draw:page>{frame * 2}</draw:page>"
    found = read(odf(body, "presentation", {"Object 1/content.xml": chart}))
    assert list(found.places) == [("slide 1", "one\nnotes"), ("slide 2", "sales\nEast | 4")]
    damaged = read(odf(body, "presentation", {"Object 1/content.xml": "<"}))
    assert list(damaged.places) == [("slide 1", "one\nnotes")]
    assert list(damaged.passed_over) == ["slide 2, Object 1"]
    assert read(odf(body, "presentation")).passed_over == {"slide 2, an embedded object": "is not read"}


def test_what_is_encrypted_is_refused_and_what_is_damaged_is_read_in_part() -> None:
    def encrypted(name: str) -> dict[str, str]:
        entry = f"<manifest:file-entry manifest:full-path='{name}'><manifest:encryption-data/></manifest:file-entry>"
        return {"META-INF/manifest.xml": f"<manifest:manifest {NAMESPACES}>{entry}</manifest:manifest>"}

    with pytest.raises(NoTextError, match="is encrypted"):
        read(odf(P.format("w0"), parts=encrypted("content.xml")))
    with pytest.raises(NoTextError, match="is encrypted"):
        read(odf(P.format("w0"), parts={"encrypted-package": "x"}))
    part = read(odf(P.format("w0"), parts=encrypted("Object 1/content.xml")))
    assert (part.words, part.passed_over) == (["w0"], {"Object 1/content.xml": "is encrypted"})
    damaged = read(odf(f"{P.format('w0')}<text:p <{W1}"))
    assert damaged.words[0] == "w0"
    assert "only read in part" in damaged.passed_over["content.xml"]
    styles = read(odf(P.format("w0"), parts={"styles.xml": "<"}))
    assert (styles.words, list(styles.passed_over)) == (["w0"], ["styles.xml"])
    with pytest.raises(NoTextError, match="damaged"):
        read(odf("", parts={"content.xml": "no XML"}))
    with pytest.raises(NoTextError, match="damaged"):
        read(b"<office:document xmlns:office='urn:oasis:names:tc:opendocument:xmlns:office:1.0'>")
