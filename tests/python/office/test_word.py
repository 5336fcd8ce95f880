"""Texts of Word are read by their whole tree, each word once and in its order; what is left out is named."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from everlong.files.document import NoTextError
from everlong.files.parsing import parse
from support.examples import examples
from support.office_files import NAMESPACES, WORD, package, random_trees, read, word_file

RUN = "<w:r><w:t>{}</w:t></w:r>"
PARAGRAPH = f"<w:p>{RUN}</w:p>"
TABLE = "<w:tbl><w:tblPr/><w:tr><w:tc>{}</w:tc></w:tr></w:tbl>"
BOX = "<w:r><w:pict><v:shape><v:textbox><w:txbxContent>{}</w:txbxContent></v:textbox></v:shape></w:pict></w:r>"
NEW_BOX = "<w:drawing><wps:wsp><wps:txbx><w:txbxContent>{}</w:txbxContent></wps:txbx></wps:wsp></w:drawing>"
CONTROL = "<w:sdt><w:sdtPr><w:text/></w:sdtPr><w:sdtContent>{}</w:sdtContent></w:sdt>"
FIELD = "<w:r><w:fldChar w:fldCharType='{}'/></w:r>"
BOTH = (
    f"<w:r><mc:AlternateContent><mc:Choice Requires='wps'>{NEW_BOX}</mc:Choice>"
    f"<mc:Fallback>{BOX[5:-6]}</mc:Fallback></mc:AlternateContent></w:r>"
)
WHERE_A_WORD_MAY_STAND = {
    "a table in tables": TABLE.format(TABLE.format(TABLE.format(PARAGRAPH.format("w1")))),
    "a content control": CONTROL.format(PARAGRAPH.format("w1")),
    "a row in a content control": f"<w:tbl><w:sdt><w:sdtContent><w:tr><w:tc>{PARAGRAPH.format('w1')}</w:tc></w:tr>"
    "</w:sdtContent></w:sdt></w:tbl>",
    "a cell in a content control": f"<w:tbl><w:tr><w:sdt><w:sdtContent><w:tc>{PARAGRAPH.format('w1')}</w:tc>"
    "</w:sdtContent></w:sdt></w:tr></w:tbl>",
    "a control in a line": f"<w:p><w:sdt><w:sdtContent>{RUN.format('w1')}</w:sdtContent></w:sdt></w:p>",
    "an insertion": f"<w:p><w:ins w:author='B'>{RUN.format('w1')}</w:ins></w:p>",
    "an inserted paragraph": f"<w:ins>{PARAGRAPH.format('w1')}</w:ins>",
    "what was moved here": f"<w:p><w:moveTo>{RUN.format('w1')}</w:moveTo></w:p>",
    "custom XML": f"<w:customXml><w:p><w:customXml>{RUN.format('w1')}</w:customXml></w:p></w:customXml>",
    "a smart tag": f"<w:p><w:smartTag w:element='City'>{RUN.format('w1')}</w:smartTag></w:p>",
    "a field": f"<w:p><w:fldSimple w:instr='DATE'>{RUN.format('w1')}</w:fldSimple></w:p>",
    "a field of several runs": f"<w:p>{FIELD.format('begin')}<w:r><w:instrText>PAGE w9</w:instrText></w:r>"
    f"{FIELD.format('separate')}{RUN.format('w1')}{FIELD.format('end')}</w:p>",
    "a hyperlink": f"<w:p><w:hyperlink r:id='rId9'>{RUN.format('w1')}</w:hyperlink></w:p>",
    "a text box": f"<w:p>{BOX.format(PARAGRAPH.format('w1'))}</w:p>",
    "a text box, said in two ways": f"<w:p>{BOTH.format(*[PARAGRAPH.format('w1')] * 2)}</w:p>",
    "the fallback alone": "<w:p><w:r><mc:AlternateContent><mc:Choice Requires='x'><w:drawing/></mc:Choice><mc:Fallback>"
    f"{BOX[5:-6].format(PARAGRAPH.format('w1'))}</mc:Fallback></mc:AlternateContent></w:r></w:p>",
    "a table in a box": f"<w:p>{BOX.format(TABLE.format(PARAGRAPH.format('w1')))}</w:p>",
    "word art": "<w:p><w:r><w:pict><v:shape><v:textpath string='w1'/></v:shape></w:pict></w:r></w:p>",
    "a described picture": "<w:p><w:r><w:drawing><wp:docPr id='1' descr='w1'/></w:drawing></w:r></w:p>",
    "an equation": "<w:p><m:oMath><m:r><m:t>w1</m:t></m:r></m:oMath></w:p>",
    "an equation on its own": "<m:oMathPara><m:oMath><m:r><m:t>w1</m:t></m:r></m:oMath></m:oMathPara>",
    "ruby": f"<w:p><w:r><w:ruby><w:rubyPr/><w:rt>{RUN.format('w1')}</w:rt><w:rubyBase/></w:ruby></w:r></w:p>",
    "right to left": f"<w:p><w:bdo w:val='rtl'>{RUN.format('w1')}</w:bdo></w:p>",
    "hidden text": "<w:p><w:r><w:rPr><w:vanish/></w:rPr><w:t>w1</w:t></w:r></w:p>",
    "the entry of a list that is chosen": "<w:p><w:r><w:fldChar><w:ffData><w:ddList><w:result w:val='1'/>"
    "<w:listEntry w:val='w0'/><w:listEntry w:val='w1'/></w:ddList></w:ffData></w:fldChar></w:r></w:p>",
}


@pytest.mark.parametrize("where", WHERE_A_WORD_MAY_STAND)
@pytest.mark.parametrize("strict", [False, True])
def test_a_word_is_read_once_wherever_it_stands(where: str, strict: bool) -> None:
    found = read(
        word_file(PARAGRAPH.format("w0") + WHERE_A_WORD_MAY_STAND[where] + PARAGRAPH.format("w2"), strict=strict)
    )
    assert found.words == ["w0", "w1", "w2"]
    assert found.passed_over == {}


AROUND = {
    "ins": ("<w:ins>", "</w:ins>"),
    "link": ("<w:hyperlink>", "</w:hyperlink>"),
    "control": ("<w:sdt><w:sdtContent>", "</w:sdtContent></w:sdt>"),
    "field": ("<w:fldSimple w:instr='X'>", "</w:fldSimple>"),
}


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
            return f"<w:p>{said}{''.join(BOX.format(self.blocks(one[1])) for one in inner if one[0] == 'box')}</w:p>"
        if kind == "control":
            return CONTROL.format(self.blocks(inner))
        rows = ("".join(f"<w:tc>{self.blocks(cell)}</w:tc>" for cell in row) for row in inner)
        return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in rows)}</w:tbl>"

    def _piece(self, tree: tuple[str, Any]) -> str:
        kind, inner = tree
        if kind == "run":
            self.words.append(f"w{len(self.words)}")
            return RUN.format(f"{self.words[-1]} ")
        before, behind = AROUND[kind]
        return before + "".join(map(self._piece, inner)) + behind


TREES = random_trees(sorted(AROUND), "control")


@pytest.mark.slow
@examples(200)
@given(TREES)
def test_all_words_of_a_random_tree_come_back_in_order(trees: list[Any]) -> None:
    writer = Writer()
    assert read(word_file(writer.blocks(trees))).words == writer.words


def test_notes_and_comments_stand_behind_their_paragraph() -> None:
    body = (
        "<w:p><w:r><w:t>w0</w:t><w:footnoteReference w:id='2'/><w:t> w1</w:t><w:endnoteReference w:id='2'/></w:r>"
        "<w:r><w:commentReference w:id='0'/></w:r></w:p><w:p><w:r><w:t>w8</w:t></w:r></w:p>"
    )
    notes = {
        f"word/{kind}s.xml": f"<w:{kind}s {NAMESPACES}><w:{kind} w:id='0' w:type='separator'><w:p/></w:{kind}>"
        f"<w:{kind} w:id='2'>{PARAGRAPH.format(said)}</w:{kind}></w:{kind}s>"
        for kind, said in (("footnote", "w3"), ("endnote", "w4"))
    }
    comments = (
        f"<w:comments {NAMESPACES}><w:comment w:id='0' w:author='Ada'>{TABLE.format(PARAGRAPH.format('w5'))}"
        f"</w:comment><w:comment w:id='1'>{PARAGRAPH.format('w9')}</w:comment></w:comments>"
    )
    related = [(f"{kind}s", f"{kind}s.xml") for kind in ("footnote", "endnote", "comment")]
    found = read(word_file(body, notes | {"word/comments.xml": comments}, related))
    assert list(found.places) == [
        ("", "w0[1] w1[2]\n[1] w3\n[2] w4\n[comment of Ada] w5\nw8"),
        ("comments", "[comment] w9"),
    ]


def test_headers_and_footers_are_read_once() -> None:
    """Three sections of one header have it thrice."""
    header = f"<w:hdr {NAMESPACES}>{PARAGRAPH.format('w1')}</w:hdr>"
    parts = {f"word/{name}.xml": header for name in ("h1", "h2", "h3")}
    parts["word/f.xml"] = header.replace("w1", "w2").replace("hdr", "ftr")
    related = [*(("header", f"{name}.xml") for name in ("h1", "h2", "h3")), ("footer", "f.xml")]
    found = read(word_file(PARAGRAPH.format("w0"), parts, related))
    assert list(found.places) == [("", "w0"), ("page header", "w1"), ("page footer", "w2")]


def test_what_was_deleted_is_named_by_its_heading() -> None:
    gone = "<w:p><w:r><w:t>kept</w:t></w:r><w:del w:author='B'><w:r><w:delText>w1</w:delText></w:r></w:del></w:p>"
    body = (
        "<w:p><w:pPr><w:outlineLvl w:val='0'/></w:pPr><w:r><w:t>Rent</w:t></w:r></w:p>" + gone * 2 +
        "<w:p><w:moveFrom><w:r><w:t>w2</w:t></w:r></w:moveFrom></w:p>"
        f"<w:tbl><w:tr><w:trPr><w:del/></w:trPr><w:tc>{PARAGRAPH.format('w3')}</w:tc></w:tr></w:tbl>"
        "<w:p><w:pPr><w:rPr><w:del/></w:rPr></w:pPr><w:r><w:t>stays</w:t></w:r></w:p>"
    )  # fmt: skip
    found = read(word_file(body))
    assert list(found.places) == [("Rent", "Rent\nkept\nkept\n\nstays")]
    assert found.passed_over == {
        "Rent, deleted text": "is not read, 2 times",
        "Rent, text that was moved from here": "is not read",
        "Rent, a deleted row of a table": "is not read",
    }


def test_headings_are_told_by_their_styles() -> None:
    """By name in any language of the program, and by the level of a style or of the one that it is made of."""
    styles = (
        f"<w:styles {NAMESPACES}><w:style w:styleId='berschrift1'><w:name w:val='heading 1'/></w:style>"
        "<w:style w:styleId='Part'><w:name w:val='Part'/><w:pPr><w:outlineLvl w:val='0'/></w:pPr></w:style>"
        "<w:style w:styleId='Own'><w:name w:val='Own'/><w:basedOn w:val='Part'/></w:style>"
        "<w:style w:styleId='Circle'><w:name w:val='C'/><w:basedOn w:val='Circle'/></w:style></w:styles>"
    )
    body = "".join(
        f"<w:p><w:pPr><w:pStyle w:val='{style}'/></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>{PARAGRAPH.format('words')}"
        for style, text in (("berschrift1", "One"), ("Own", "Two"), ("Circle", "Three"))
    )
    found = read(word_file(body, {"word/styles.xml": styles}, [("styles", "styles.xml")]))
    assert list(found.places) == [("One", "One\nwords"), ("Two", "Two\nwords\nThree\nwords")]


def test_characters_that_are_elements_are_read() -> None:
    body = (
        "<w:p><w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t><w:noBreakHyphen/><w:t>d</w:t><w:softHyphen/>"
        "<w:sym w:font='Symbol' w:char='F061'/><w:sym w:font='Wingdings' w:char='F0FC'/>"
        "<w:sym w:font='X' w:char='2192'/></w:r></w:p><w:p><m:oMath>"
        "<m:f><m:num><m:r><m:t>a+b</m:t></m:r></m:num><m:den><m:r><m:t>2</m:t></m:r></m:den></m:f>"
        "<m:sSup><m:e><m:r><m:t>x</m:t></m:r></m:e><m:sup><m:r><m:t>10</m:t></m:r></m:sup></m:sSup></m:oMath></w:p>"
    )
    assert read(word_file(body)).text == "a\tb\nc-dα✓→\n(a+b)/2x^10\n\n"


def test_a_cell_over_several_columns_is_read_once() -> None:
    import docx

    made, out = docx.Document(), io.BytesIO()
    table = made.add_table(2, 4)
    table.cell(0, 0).merge(table.cell(0, 3)).text = "w0"
    for number, cell in enumerate(table.rows[1].cells, 1):
        cell.text = f"w{number}"
    made.save(out)
    found = read(out.getvalue())
    assert found.words == ["w0", "w1", "w2", "w3", "w4"]
    assert "w1 | w2 | w3 | w4" in found.text


CHART = (
    f"<c:chartSpace {NAMESPACES}><c:chart>"
    "<c:title><c:tx><c:rich><a:p><a:r><a:t>w1</a:t></a:r></a:p></c:rich></c:tx></c:title>"
    "<c:ser><c:tx><c:strRef><c:f>A1</c:f><c:strCache><c:pt><c:v>w2</c:v></c:pt></c:strCache></c:strRef></c:tx>"
    "<c:cat><c:strCache><c:pt><c:v>w3</c:v></c:pt><c:pt><c:v>w4</c:v></c:pt></c:strCache></c:cat>"
    "<c:val><c:numCache><c:formatCode>0%</c:formatCode><c:pt><c:v>0.5</c:v></c:pt><c:pt><c:v>0.25</c:v></c:pt></c:numCache>"
    "</c:val></c:ser></c:chart></c:chartSpace>"
)
DIAGRAM = (
    f"<dgm:dataModel {NAMESPACES}><dgm:pt><dgm:t><a:p><a:r><a:t>w5</a:t></a:r></a:p></dgm:t></dgm:pt></dgm:dataModel>"
)


def test_charts_diagrams_and_files_within_are_read() -> None:
    """A chart once, though two places refer to it. A chart's own workbook is not read again."""
    drawing = "<w:p><w:r><w:drawing><c:chart r:id='rId1'/></w:drawing></w:r></w:p>"
    body = (
        drawing * 2 + "<w:p><w:r><w:drawing><dgm:relIds r:dm='rId2'/></w:drawing></w:r></w:p><w:altChunk r:id='rId3'/>"
    )
    inner = word_file(PARAGRAPH.format("w7"))
    parts: dict[str, str | bytes] = {
        "word/charts/c.xml": CHART,
        "word/d.xml": DIAGRAM,
        "word/chunk.htm": b"<html><p>w6</p></html>",
        "word/in.docx": inner,
        "word/o.bin": b"x",
        "word/g.xml": f"<w:glossaryDocument {NAMESPACES}/>",
        "word/p.bin": word_file(PARAGRAPH.format("w8")),
    }
    related = [
        ("chart", "charts/c.xml"),
        ("diagramData", "d.xml"),
        ("aFChunk", "chunk.htm"),
        ("package", "/word/in.docx"),
    ]
    found = read(
        word_file(
            body, parts, [*related, ("oleObject", "o.bin"), ("glossaryDocument", "g.xml"), ("oleObject", "p.bin")]
        )
    )
    assert found.words == [f"w{number}" for number in range(1, 9)]
    assert "w2: w3 50%, w4 25%" in found.text
    assert [one.name for one in found.documents] == ["", "chunk.htm", "in.docx", "p.bin"]
    assert found.passed_over == {
        "o.bin": "is an embedded object: it is not read",
        "g.xml": "holds pieces of text to put in, which is not shown: it is not read",
    }


@pytest.mark.parametrize("kind", ["header", "footnotes", "comments", "chart", "styles"])
def test_a_damaged_part_costs_itself_alone(kind: str) -> None:
    broken = f"<w:x {NAMESPACES}><w:p>"
    drawing = "<w:p><w:r><w:drawing><c:chart r:id='rId1'/></w:drawing></w:r></w:p>" if kind == "chart" else ""
    body = PARAGRAPH.format("w0") + drawing + PARAGRAPH.format("w1")
    found = read(word_file(body, {"word/part.xml": broken}, [(kind, "part.xml")]))
    assert found.words == ["w0", "w1"]
    ((place, why),) = found.passed_over.items()
    assert place == {"header": "page header", "chart": "a chart"}.get(kind, kind)
    assert "is damaged" in why
    missing = read(word_file(body, {}, [(kind, "part.xml")]))
    assert (missing.words, list(missing.passed_over)) == (["w0", "w1"], [place])


def test_a_text_is_read_around_its_damage() -> None:
    body = PARAGRAPH.format("w0") + "<w:tbl><w:tr><w:tc><w:p w:x=></w:p></w:tc></w:tr></w:tbl>" + PARAGRAPH.format("w1")
    found = read(word_file(body))
    assert found.words == ["w0", "w1"]
    assert "only read in part" in found.passed_over["the text"]
    with pytest.raises(NoTextError):
        read(package({"word/document.xml": "no XML"}, {}, WORD))


def test_parts_may_lie_anywhere(tmp_path: Path) -> None:
    """And names of parts are one name, whatever the case of their letters."""
    body = f"{PARAGRAPH.format('w0')}<w:p><w:r><w:footnoteReference w:id='1'/></w:r></w:p>"
    document = f"<w:document {NAMESPACES}><w:body>{body}</w:body></w:document>"
    notes = f"<w:footnotes {NAMESPACES}><w:footnote w:id='1'>{PARAGRAPH.format('w1')}</w:footnote></w:footnotes>"
    data = package(
        {"Other/Text2.xml": document, "elsewhere/NOTES.xml": notes},
        {"Other/Text2.xml": [("footnotes", "../Elsewhere/notes.xml")]},
        WORD,
    )
    (tmp_path / "a.docx").write_bytes(data)
    (one,) = parse(tmp_path / "a.docx").documents
    assert re.findall(r"w\d", one.text) == ["w0", "w1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "behind"), [("<w:sdt><w:sdtContent>", "</w:sdtContent></w:sdt>"), ("<w:ins>", "</w:ins>")]
)
def test_deep_nesting_is_read_or_named(before: str, behind: str, tmp_path: Path) -> None:
    for depth in (30, 110, 2000):
        line = f"<w:p>{before * depth}{RUN.format('w1')}{behind * depth}</w:p>"
        (tmp_path / "deep.docx").write_bytes(word_file(PARAGRAPH.format("w0") + line))
        found = parse(tmp_path / "deep.docx")
        assert "w0" in found.documents[0].text
        assert ("w1" in found.documents[0].text) != bool(found.passed_over), depth
