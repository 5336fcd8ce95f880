"""PDFs are read page by page, with what was filled in and noted; what cannot be read is named with its page."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import pypdf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files.document import Document, Inner, NoTextError, PassedOverError
from everlong.files.parsing import parse
from everlong.files.pdf import read
from support.pdf_files import PICTURE, lines, pdf, stream

ONE, THREE = stream(lines("The first page.")), stream(lines("The third page."))
DRAWN = stream(PICTURE)


def _read(data: bytes) -> tuple[dict[str, str], list[str]]:
    """Return what each place says, and what is passed over."""
    found = list(read(data, "pdf"))
    sections = {one.place: one.text.strip() for d in found if isinstance(d, Document) for one in d.sections}
    return sections, [f"{one.name}: {one}" for one in found if isinstance(one, PassedOverError)]


@pytest.mark.parametrize(
    "page",
    [
        stream(b"not what it says", b"/Filter /Crypt"),
        stream(b"not what it says", b"/Filter /A85"),
        stream(b"not what it says", b"/Filter /JBIG2Decode"),
        stream(b"not what it says", b"/Filter /FlateDecode"),
        stream(b"not what it says", b"/Filter /DCTDecode"),
        stream(b"not what it says", b"/Filter /Nothing"),
        stream(b"BT /F1 12 Tf (cut off"),
        b"<< /Kids 7 >>",
    ],
)
def test_a_damaged_page_is_passed_over_alone(page: bytes) -> None:
    sections, over = _read(pdf([ONE, page, THREE]))
    assert sections == {"p. 1": "The first page.", "p. 3": "The third page."}
    assert [one.partition(":")[0] for one in over] == ["p. 2"]


def test_a_page_whose_content_ends_too_early_says_so() -> None:
    packed = zlib.compress(lines(*(f"Line {n} of words" for n in range(60))))
    for data in (packed[: len(packed) // 2], packed[: len(packed) // 2] + b"\xff" + packed[len(packed) // 2 + 1 :]):
        _, over = _read(pdf([ONE, stream(data, b"/Filter /FlateDecode"), THREE]))
        assert [one.partition(":")[0] for one in over] == ["p. 2"]


def test_pages_that_are_pictures_are_named() -> None:
    stamped = stream(PICTURE + b" " + lines("Received 5 May"))
    sections, over = _read(pdf([ONE, DRAWN, DRAWN, THREE, stream(b""), stamped, DRAWN, stream(b"0 0 m 9 9 l S")]))
    assert list(sections) == ["p. 1", "p. 4", "p. 6"]
    assert [one.partition(":")[0] for one in over] == ["p. 2 to p. 3", "p. 6 to p. 7", "p. 8"]
    assert "OCR" in over[0]
    assert _read(pdf([stamped], pixels=30))[1] == []  # a logo
    blank = stream(b"q 0 0 612 792 re W* n BT /F1 11 Tf 72 720 Td [( )] TJ ET Q")
    assert _read(pdf([ONE, blank]))[1] == []
    with pytest.raises(NoTextError, match="OCR"):
        _read(pdf([DRAWN, DRAWN]))


def test_forms_are_read_as_they_were_filled_in() -> None:
    fields = {
        500: b"<< /Subtype /Widget /FT /Tx /T (tenant) /V (Ada Lovelace) >>",
        501: b"<< /Subtype /Widget /FT /Ch /T (town) /V (b) /Opt [ [ (a) (Ayr) ] [ (b) (Bath) ] ] >>",
        502: b"<< /Subtype /Widget /FT /Btn /T (pets) /TU (Pets allowed) /V /Yes /AS /Yes >>",
        503: b"<< /Subtype /Widget /FT /Btn /T (smoker) /V /Off /AS /Off >>",
        504: b"<< /FT /Tx /T (address) /Kids [ 505 0 R 506 0 R ] >>",
        505: b"<< /Subtype /Widget /Parent 504 0 R /T (street) /V (Long Lane) >>",
        506: b"<< /Subtype /Widget /Parent 504 0 R /T (note) /V 507 0 R >>",
        507: stream(b"A long text"),
        508: b"<< /FT /Tx /T (elsewhere) /V (on no page) >>",
        509: b"<< /Subtype /Widget /FT /Sig /T (signed) /V << /Name (Ben) /Reason (Agreed) >> >>",
        510: b"<< /Subtype /Widget /FT /Tx /T (empty) >>",
        511: b"<< /Subtype /Widget /Parent 500 0 R >>",
    }
    shown = b"/Annots [ %s ]" % b" ".join(b"%d 0 R" % n for n in (500, 501, 502, 503, 505, 506, 509, 510, 511))
    catalog = b"/AcroForm << /Fields [ 500 0 R 501 0 R 502 0 R 503 0 R 504 0 R 508 0 R 509 0 R 510 0 R ] >>"
    sections, over = _read(pdf([(ONE, shown)], fields, catalog=catalog))
    assert sections["p. 1"].splitlines() == [
        "The first page.",
        "",
        "tenant: Ada Lovelace",
        "town: Bath",
        "Pets allowed: [x]",
        "address.street: Long Lane",
        "address.note: A long text",
        "signed: Ben, Agreed",
    ]
    assert sections["form"] == "elsewhere: on no page"
    assert over == []


def test_notes_are_read_and_one_odd_note_costs_nothing() -> None:
    notes = {
        500: b"<< /Subtype /FreeText /Contents (typed onto the page) >>",
        501: b"<< /Subtype /Text /Contents (is this right?) /T (Ada) >>",
        502: b"<< /Subtype /Popup /Contents (is this right?) >>",
        503: b"<< /Subtype /FreeText /RC (<body><p>rich <b>words</b></p></body>) >>",
        504: b"<< /Subtype /Stamp /AP << /N 505 0 R >> >>",
        505: stream(lines("APPROVED"), b"/Subtype /Form /BBox [0 0 9 9] /Resources << /Font << /F1 3 0 R >> >>"),
        506: b"<< /Subtype /Movie >>",
        507: b"<< /Subtype /Highlight /Contents /Odd >>",
        508: b"[ 7 ]",
    }
    shown = b"/Annots [ %s 999 0 R ]" % b" ".join(b"%d 0 R" % n for n in (500, 501, 502, 503, 504, 506, 507, 508))
    sections, over = _read(pdf([(ONE, shown), THREE], notes))
    said = sections["p. 1"].split("\n\n")
    assert said[:5] == [
        "The first page.",
        "typed onto the page",
        "Note by Ada: is this right?",
        "rich words",
        "APPROVED",
    ]
    assert sections["p. 2"] == "The third page."
    assert over == ["p. 1: has a film, a sound or a model (/Movie)"]


def test_files_in_a_pdf_are_read_by_the_readers_for_their_kinds(tmp_path: Path) -> None:
    files = {
        500: b"<< /Type /Filespec /F (a.txt) /EF << /F 501 0 R >> >>",
        501: stream(b"NEEDLE in an attached file", packed=True),
        502: b"<< /UF (b.html) /EF << /F 503 0 R >> >>",
        503: stream(b"<title/><p>A page."),
        504: b"<< /UF (c.png) /EF << /F 505 0 R >> >>",
        505: stream(b"\x89PNG\r\n"),
        506: b"<< /UF (d.txt) /EF << /F 507 0 R >> >>",
        507: stream(b"damaged", b"/Filter /Nothing"),
        508: b"<< /Subtype /FileAttachment /FS 509 0 R /Contents (see inside) >>",
        509: b"<< /UF (e.txt) /EF << /F 510 0 R >> >>",
        510: stream(b"Words of a note's file."),
    }
    tree = b"<< /Kids [ << /Kids [ << /Names [ (a) 500 0 R (b) 502 0 R ] >> ] >> << /Names [ (c) 504 0 R ] >> ] >>"
    catalog = b"/Names << /EmbeddedFiles %s >> /AF [ 506 0 R 500 0 R ]" % tree
    data = pdf([(ONE, b"/Annots [ 508 0 R ]")], files, catalog=catalog)
    assert [one.name for one in read(data, "pdf") if isinstance(one, Inner)] == ["a.txt", "b.html", "c.png", "e.txt"]
    (tmp_path / "a.pdf").write_bytes(data)
    found = parse(tmp_path / "a.pdf")
    assert [one.name for one in found.documents] == ["", "a.txt", "b.html", "e.txt"]
    assert "NEEDLE" in found.documents[1].text
    assert [name for name, _ in found.passed_over] == ["c.png", "d.txt"]
    (tmp_path / "portfolio.pdf").write_bytes(pdf([DRAWN], files, catalog=catalog))
    assert "NEEDLE" in parse(tmp_path / "portfolio.pdf").documents[0].text


def test_ligatures_become_letters() -> None:
    names = b"/fi /fl /ff /t_t /T_h /f_f_i /ff.alt /uniFEFB"
    font = (
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Times-Roman /Encoding << /Type /Encoding "
        b"/BaseEncoding /WinAnsiEncoding /Differences [ 1 %s ] >> >>" % names
    )
    page = lines(b"The \x01nal \x02y o\x03er", b"se\x04ing \x05e o\x06ce bu\x07et a/b t_t", b"\x08")
    sections, _ = _read(pdf([stream(page)], font=font))
    said = "The final fly offer setting The office buffet a/b t_t \u0644\u0627"
    assert " ".join(sections["p. 1"].split()) == said


@pytest.mark.parametrize("how", ["RC4-128", "AES-128", "AES-256"])
def test_a_pdf_that_opens_without_a_password_is_read(how: str) -> None:
    for password, refused in (("", False), ("secret", True)):
        writer, out = pypdf.PdfWriter(io.BytesIO(pdf([ONE]))), io.BytesIO()
        writer.encrypt(password, "owner", algorithm=how)
        writer.write(out)
        if refused:
            with pytest.raises(NoTextError, match="password"):
                _read(out.getvalue())
        else:
            assert _read(out.getvalue()) == ({"p. 1": "The first page."}, [])


_PAGES = st.lists(
    st.one_of(
        st.none(), st.lists(st.lists(st.text("abcé(\\)", min_size=1, max_size=6), max_size=4), min_size=1, max_size=4)
    ),
    min_size=1,
    max_size=6,
)


@given(_PAGES, st.booleans())
def test_all_words_of_a_pdf_come_back_on_their_pages(pages: list[list[list[str]] | None], packed: bool) -> None:
    """None is a page that is a picture."""
    made = [DRAWN if page is None else stream(lines(*map(" ".join, page)), packed=packed) for page in pages]
    words = {f"p. {n}": [word for line in page or [] for word in line] for n, page in enumerate(pages, 1)}
    said = {place: found for place, found in words.items() if found}
    if not said:
        with pytest.raises(NoTextError):
            _read(pdf(made))
        return
    sections, over = _read(pdf(made))
    assert {place: text.split() for place, text in sections.items()} == said
    assert bool(over) == (None in pages)
