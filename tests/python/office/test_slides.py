"""Presentations are read whole: every shape, notes, comments and masters; a damaged slide costs itself alone."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files.document import NoTextError
from support.examples import examples
from support.office_files import NAMESPACES, SLIDES, package, read

TEXT = "<a:p><a:r><a:t>{}</a:t></a:r></a:p>"
SHAPE = "<p:sp><p:txBody>{}</p:txBody></p:sp>"


def slides(
    shapes: Sequence[str],
    parts: Mapping[str, str] | None = None,
    related: Sequence[tuple[str, str]] = (),
    strict: bool = False,
) -> bytes:
    """A presentation with so many slides. `related`: relationships of the first one."""
    ids = "".join(f"<p:sldId id='{255 + at}' r:id='rId{at}'/>" for at in range(1, len(shapes) + 1))
    made = {"ppt/p.xml": f"<p:presentation {NAMESPACES}><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>"}
    for at, shape in enumerate(shapes, 1):
        made[f"ppt/s{at}.xml"] = f"<p:sld {NAMESPACES}><p:cSld><p:spTree>{shape}</p:spTree></p:cSld></p:sld>"
    listed = {"ppt/p.xml": [("slide", f"s{at}.xml") for at in range(1, len(shapes) + 1)], "ppt/s1.xml": list(related)}
    beside = (("authors", "authors.xml"), ("slideMaster", "m.xml"), ("handoutMaster", "h.xml"))
    listed["ppt/p.xml"] += [(kind, name) for kind, name in beside if f"ppt/{name}" in (parts or {})]
    listed["ppt/m.xml"] = [("slideLayout", "l.xml")]
    return package(made | dict(parts or {}), listed, SLIDES, strict)


def _shape(tree: tuple[str, Any], words: list[str]) -> str:
    kind, inner = tree
    if kind == "text":
        first = len(words)
        words += [f"w{first + at}" for at in range(inner)]
        return SHAPE.format("".join(TEXT.format(word) for word in words[first:]))
    if kind == "group":
        return f"<p:grpSp><p:grpSpPr/>{''.join(_shape(one, words) for one in inner)}</p:grpSp>"
    if kind == "choice":
        said = "".join(_shape(one, words) for one in inner)
        return (
            f"<mc:AlternateContent><mc:Choice>{said}</mc:Choice><mc:Fallback>{said}</mc:Fallback></mc:AlternateContent>"
        )
    rows = ""
    for row in inner:
        cells = ""
        for _ in range(row):
            words.append(f"w{len(words)}")
            cells += f"<a:tc><a:txBody>{TEXT.format(words[-1])}</a:txBody><a:tcPr/></a:tc>"
        rows += f"<a:tr>{cells}</a:tr>"
    return (
        f"<p:graphicFrame><a:graphic><a:graphicData><a:tbl>{rows}</a:tbl></a:graphicData></a:graphic></p:graphicFrame>"
    )


SHAPES: st.SearchStrategy[tuple[str, Any]] = st.recursive(
    st.tuples(st.just("text"), st.integers(0, 3))
    | st.tuples(st.just("table"), st.lists(st.integers(1, 3), min_size=1, max_size=3)),
    lambda inner: st.tuples(st.sampled_from(["group", "choice"]), st.lists(inner, max_size=3)),
    max_leaves=6,
)


@pytest.mark.slow
@examples(100)
@given(st.lists(SHAPES, min_size=1, max_size=4), st.booleans())
def test_all_words_of_random_shapes_come_back_in_order(trees: list[tuple[str, Any]], strict: bool) -> None:
    words: list[str] = []
    found = read(slides([_shape(tree, words) for tree in trees], strict=strict))
    assert found.words == words
    places = [place for place, _ in found.places]
    assert places == [place for place in (f"slide {at}" for at in range(1, len(trees) + 1)) if place in places]


def test_what_a_library_writes_is_read() -> None:
    import pptx
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE

    made, out = pptx.Presentation(), io.BytesIO()
    slide = made.slides.add_slide(made.slide_layouts[5])
    slide.shapes.title.text = "w0"
    data = CategoryChartData()
    data.categories = ["w2", "w3"]
    data.add_series("w4", (19.5, 21.25))
    chart = slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, 0, 0, 99, 99, data).chart
    chart.has_title = True
    chart.chart_title.text_frame.text = "w1"
    table = slide.shapes.add_table(2, 2, 0, 0, 99, 99).table
    for at in range(4):
        table.cell(at // 2, at % 2).text = f"w{5 + at}"
    group = slide.shapes.add_group_shape().shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "w9\vw10"
    slide.notes_slide.notes_text_frame.text = "w11"
    made.save(out)
    found = read(out.getvalue())
    assert sorted(found.words) == sorted(f"w{at}" for at in range(12))
    assert "w4: w2 19.5, w3 21.25" in found.text
    assert "w5 | w6\nw7 | w8" in found.text
    assert "w9\nw10" in found.text
    assert found.passed_over == {}


def test_diagrams_notes_comments_and_masters_are_read() -> None:
    frame = "<p:graphicFrame><a:graphicData><dgm:relIds r:dm='rId1'/></a:graphicData></p:graphicFrame>"
    placed = "<p:sp><p:nvSpPr><p:nvPr><p:ph type='{}'/></p:nvPr></p:nvSpPr><p:txBody>{}</p:txBody></p:sp>"
    number = placed.format("sldNum", "<a:p><a:fld type='slidenum'><a:t>7</a:t></a:fld></a:p>")
    master = SHAPE.format(TEXT.format("w6")) + placed.format("body", TEXT.format("w9"))
    modern = "http://schemas.microsoft.com/office/powerpoint/2018/8/main"
    handout = f"<p:cSld><p:spTree>{placed.format('ftr', TEXT.format('w7'))}</p:spTree></p:cSld>"
    parts = {
        "ppt/d.xml": f"<dgm:dataModel {NAMESPACES}><dgm:pt><dgm:t>{TEXT.format('w1')}</dgm:t></dgm:pt></dgm:dataModel>",
        "ppt/n.xml": f"<p:notes {NAMESPACES}><p:spTree>{number}{SHAPE.format(TEXT.format('w2'))}</p:spTree></p:notes>",
        "ppt/c1.xml": f"<p:cmLst {NAMESPACES}><p:cm authorId='0'><p:text>w3</p:text></p:cm></p:cmLst>",
        "ppt/c2.xml": f"<x:cmLst xmlns:x='{modern}' {NAMESPACES}><x:cm authorId='0'><x:replyLst><x:reply><x:txBody>"
        f"{TEXT.format('w5')}</x:txBody></x:reply></x:replyLst><x:txBody>{TEXT.format('w4')}</x:txBody></x:cm></x:cmLst>",
        "ppt/l.xml": f"<p:sldLayout {NAMESPACES}><p:cSld><p:spTree>{master}</p:spTree></p:cSld></p:sldLayout>",
        "ppt/m.xml": f"<p:sldMaster {NAMESPACES}/>",
        "ppt/h.xml": f"<p:handoutMaster {NAMESPACES}>{handout}</p:handoutMaster>",
        "ppt/authors.xml": f"<p:cmAuthorLst {NAMESPACES}><p:cmAuthor id='0' name='Ada'/></p:cmAuthorLst>",
    }
    related = [("diagramData", "d.xml"), ("notesSlide", "n.xml"), ("comments", "c1.xml"), ("comments", "c2.xml")]
    found = read(slides([frame], parts, related))
    assert list(found.places) == [
        ("slide 1", "w1\nw2\n[comment of Ada] w3\n[comment of Ada] w4\n[comment] w5"),
        ("slide master", "w7\nw6"),
    ]


def test_a_damaged_slide_costs_itself_alone() -> None:
    good = [SHAPE.format(TEXT.format(f"w{at}")) for at in range(3)]
    made = slides(good, {"ppt/s2.xml": "no XML"})
    assert read(made).words == ["w0", "w2"]
    assert list(read(made).passed_over) == ["slide 2"]
    notes = slides(good, {"ppt/n.xml": f"<p:notes {NAMESPACES}><p:sp>"}, [("notesSlide", "n.xml")])
    assert (read(notes).words, list(read(notes).passed_over)) == (["w0", "w1", "w2"], ["slide 1, notes"])
    gone = slides(good, {}, [("notesSlide", "n.xml"), ("vbaProject", "macros.bin")])
    assert (read(gone).words, list(read(gone).passed_over)) == (
        ["w0", "w1", "w2"],
        ["slide 1, notes", "slide 1, macros.bin"],
    )
    with pytest.raises(NoTextError, match="slide 1"):
        read(slides(["<"]))
