"""Files of every kind, made by the libraries' own writers, and broken or hostile ones.

In each good file stands a sentence that no other file has, with the place at which it is to be cited.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import mailbox
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from email.message import EmailMessage
from pathlib import Path
from typing import Any

FILLER = "The river goes on, and so does the road beside it. "


@dataclasses.dataclass(frozen=True)
class Made:
    """A file that was made, and where its sentence is to be cited."""

    path: Path
    sentence: str
    place: str
    title: str = ""
    year: int | None = None  # of `happened`


def secret(name: str) -> str:
    """The sentence of a file of that name; its words depend on the name alone."""
    number = sum(ord(letter) * (at + 7) for at, letter in enumerate(name)) % 90_000 + 10_000
    return f"The pass word of {name} is {number}"


def pdf_of(pages: list[str], title: str = "", created: str = "") -> bytes:
    """A PDF with these pages, written by matplotlib."""
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    out = io.BytesIO()
    about = {"Title": title or None, "CreationDate": datetime.datetime.fromisoformat(created) if created else None}
    with PdfPages(out, metadata=about) as pdf:
        for text in pages:
            figure = Figure(figsize=(8, 6))
            for row, line in enumerate(text.split(". ")):
                figure.text(0.05, 0.92 - row * 0.06, line)
            pdf.savefig(figure)
    return out.getvalue()


def _pdf(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    pages = [FILLER * 4, FILLER * 3 + said + ". " + FILLER, FILLER * 4]
    return pdf_of(pages, f"About {name}", "2019-05-03T10:00:00+00:00"), "p. 2", f"About {name}", 2019


def _html(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    page = (
        f"<!doctype html><html><head><title>About {name}</title><meta name='date' content='2018-02-03'>"
        f"<script>document.write('{'x' * 50}')</script></head><body><h1>First</h1><p>{FILLER * 8}</p>"
        f"<h2>Second part</h2><p>{said}. {FILLER * 8}</p><h2>Third</h2><ul><li>{FILLER * 8}</li></ul></body></html>"
    )
    return page.encode(), "Second part", f"About {name}", 2018


def _markdown(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    text = (
        f"---\ntitle: About {name}\ndate: 2017-03-04\n---\n# First\n{FILLER * 8}\n\n## Second part\n\n{said}. "
        f"{FILLER * 8}\n\n```\n# no heading\n```\n\n# Third\n{FILLER * 8}\n"
    )
    return text.encode(), "Second part", "", 2017


def _docx(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    import docx

    made, out = docx.Document(), io.BytesIO()
    for heading, text in (("First", FILLER * 8), ("Second part", f"{said}. {FILLER * 8}"), ("Third", FILLER * 8)):
        made.add_heading(heading, 1)
        made.add_paragraph(text)
    made.core_properties.title = f"About {name}"
    made.core_properties.created = datetime.datetime(2016, 4, 5)
    made.save(out)
    return out.getvalue(), "Second part", f"About {name}", 2016


def _pptx(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    import pptx

    made, out = pptx.Presentation(), io.BytesIO()
    for text in (FILLER * 6, f"{said}. {FILLER * 6}", FILLER * 6):
        slide = made.slides.add_slide(made.slide_layouts[1])
        slide.shapes.title.text = "A heading"
        slide.placeholders[1].text = text
    made.core_properties.title = f"About {name}"
    made.core_properties.created = datetime.datetime(2015, 4, 5)
    made.save(out)
    return out.getvalue(), "slide 2", f"About {name}", 2015


def _xlsx(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    import openpyxl

    made, out = openpyxl.Workbook(), io.BytesIO()
    sheet = made.active
    sheet.title = "Rivers"
    sheet.append(["what", "how much"])
    for row in range(2, 30):
        sheet.append([said if row == 17 else FILLER * 3, row])
    made.properties.title = f"About {name}"
    made.properties.created = datetime.datetime(2014, 4, 5)
    made.save(out)
    return out.getvalue(), "Rivers, row 17", f"About {name}", 2014


def _csv(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    rows = ["what;how much", *(f"{said if row == 17 else FILLER * 3};{row}" for row in range(2, 30))]
    return "\r\n".join(rows).encode("cp1252"), "row 17", "", None


def _epub(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    chapters = {"one": FILLER * 8, "two": f"{said}. {FILLER * 8}", "three": FILLER * 8}
    items = "".join(f"<item id='{c}' href='text/{c}.xhtml' media-type='application/xhtml+xml'/>" for c in chapters)
    spine = "".join(f"<itemref idref='{chapter}'/>" for chapter in chapters)
    package = (
        "<package xmlns='http://www.idpf.org/2007/opf' version='3.0'><metadata "
        f"xmlns:dc='http://purl.org/dc/elements/1.1/'><dc:title>About {name}</dc:title><dc:creator>Ann</dc:creator>"
        f"<dc:date>2013-01-02</dc:date></metadata><manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    container = (
        "<container xmlns='urn:oasis:names:tc:opendocument:xmlns:container'><rootfiles>"
        "<rootfile full-path='OEBPS/book.opf'/></rootfiles></container>"
    )
    members = {"mimetype": "application/epub+zip", "META-INF/container.xml": container, "OEBPS/book.opf": package}
    for chapter, text in chapters.items():
        page = f"<html xmlns='http://www.w3.org/1999/xhtml'><body><h1>Chapter {chapter}</h1><p>{text}</p></body></html>"
        members[f"OEBPS/text/{chapter}.xhtml"] = page
    return zip_of(members), "Chapter two", f"About {name}", 2013


def _notebook(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    cells = [
        {"cell_type": "markdown", "source": [FILLER * 8]},
        {"cell_type": "code", "source": "print()", "outputs": [{"text": [f"{said}. "] + [FILLER] * 8}]},
        {"cell_type": "code", "source": FILLER * 8, "outputs": []},
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode(), "cell 2", "", None


def _message(number: int, text: str) -> EmailMessage:
    made = EmailMessage()
    made["From"], made["To"], made["Subject"] = "Ann <ann@example.org>", "ben@example.org", f"River {number}"
    made["Date"] = f"Mon, {number:02} Mar 2009 10:00:00 +0000"
    made.set_content(text)
    return made


def _eml(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    return bytes(_message(2, f"{said}.\n{FILLER * 6}\n")), "River 2", "", 2009


def mbox_of(texts: list[str], folder: Path) -> bytes:
    """A mailbox, written by the standard library."""
    file = folder / ".mailbox"
    box = mailbox.mbox(file)
    for number, text in enumerate(texts, 1):
        box.add(_message(number, text))
    box.close()
    found = file.read_bytes()
    file.unlink()
    return found


def _srt(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    cues = [(said if at == 9 else FILLER * 2, at) for at in range(20)]
    text = "\n".join(f"{at + 1}\n00:{at:02}:05,000 --> 00:{at:02}:09,000\n<i>{words}</i>\n" for words, at in cues)
    return text.encode("utf-8-sig"), "00:09:05", "", None


def _vtt(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    cues = [(said if at == 9 else FILLER * 2, at) for at in range(20)]
    text = "WEBVTT\n\n" + "\n".join(f"{at:02}:05.000 --> {at:02}:09.000\n{words}\n" for words, at in cues)
    return text.encode(), "09:05", "", None


def _chatgpt(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    nodes: dict[str, Any] = {"root": {"message": None, "parent": None}}
    for number, text in enumerate((FILLER * 6, f"{said}. {FILLER * 3}", FILLER * 6)):
        role = ("user", "assistant")[number % 2]
        message = {"author": {"role": role}, "content": {"content_type": "text", "parts": [text]}}
        nodes[f"n{number}"] = {"message": message, "parent": f"n{number - 1}" if number else "root"}
    told = [{"title": "Rivers", "create_time": 1276000000.0, "mapping": nodes, "current_node": "n2"}]
    return json.dumps(told).encode(), "Rivers, message 2", "Rivers", 2010


def _claude(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    told = [FILLER * 6, f"{said}. {FILLER * 3}", FILLER * 6]
    messages = [{"sender": ("human", "assistant")[n % 2], "text": text} for n, text in enumerate(told)]
    made = [{"name": "Rivers", "created_at": "2011-05-06T07:08:09.123456Z", "chat_messages": messages}]
    return json.dumps(made).encode(), "Rivers, message 2", "Rivers", 2011


def _whatsapp(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    lines = [f"[{day:02}/05/2012, 14:02:11] Ada: {said if day == 20 else FILLER}" for day in range(3, 29)]
    return "\n".join(lines).encode(), "2012-05-20 14:02", "", 2012


def _code(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    lines = [f"x{n} = '{said if n == 47 else FILLER}'" for n in range(1, 100)]
    return "\n".join(lines).encode(), "lines 41-60", "", None


def _text(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    return f"{FILLER * 8}{said}. {FILLER * 8}".encode("utf-16"), "", "", None


def zip_of(members: Mapping[str, str | bytes]) -> bytes:
    """A zip of these members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def _zip(name: str, said: str) -> tuple[bytes, str, str, int | None]:
    inner: dict[str, str | bytes] = {
        "deep/report.pdf": _pdf(name, said)[0],
        "deep/other.txt": FILLER,
        "deep/picture.png": b"\x89PNG\r\n\0",
    }
    return zip_of(inner), "deep/report.pdf, p. 2", f"About {name}", 2019


KINDS: dict[str, Callable[[str, str], tuple[bytes, str, str, int | None]]] = {
    "pdf": _pdf,
    "html": _html,
    "md": _markdown,
    "docx": _docx,
    "pptx": _pptx,
    "xlsx": _xlsx,
    "csv": _csv,
    "epub": _epub,
    "ipynb": _notebook,
    "eml": _eml,
    "srt": _srt,
    "vtt": _vtt,
    "chatgpt.json": _chatgpt,
    "claude.json": _claude,
    "whatsapp.txt": _whatsapp,
    "py": _code,
    "utf16.txt": _text,
    "zip": _zip,
}


def make_good(folder: Path, each: int = 1) -> Iterator[Made]:
    """Make `each` files of every kind, and a mailbox."""
    for number in range(each):
        for ending, make in KINDS.items():
            path = folder / f"n{number}" / f"file-{ending.replace('.', '-')}.{ending.rpartition('.')[2]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            said = secret(f"{ending.replace('.', ' ')} {number}")
            data, place, title, year = make(f"{ending} {number}", said)
            path.write_bytes(data)
            yield Made(path, said, place, title, year)
    said = secret("a mailbox")
    path = folder / "letters.mbox"
    path.write_bytes(mbox_of([FILLER * 5, f"{said}.\n{FILLER * 5}", FILLER * 5], folder))
    yield Made(path, said, "message 2, River 2", "", 2009)


def hostile() -> dict[str, bytes]:
    """Files that are broken, or that would do harm, by their names."""
    good_docx, good_xlsx = _docx("x", "y")[0], _xlsx("x", "y")[0]
    external = (
        "<!DOCTYPE x [<!ENTITY secret SYSTEM 'file:///etc/passwd'>]><container "
        "xmlns='urn:oasis:names:tc:opendocument:xmlns:container'><rootfiles><rootfile full-path='&secret;'/>"
        "</rootfiles></container>"
    )
    lol = "".join(f"<!ENTITY l{n} '{f'&l{n - 1};' * 10}'>" for n in range(1, 12))
    laughs = f"<!DOCTYPE x [<!ENTITY l0 'lol'>{lol}]><container>&l11;</container>"
    return {
        "bomb.zip": zip_of({f"{n}.txt": b"\0" * (40 << 20) for n in range(8)}),
        "bomb.docx": _swapped(good_docx, "word/document.xml", b"<w:document>" + b" " * (300 << 20)),
        "external.epub": zip_of({"META-INF/container.xml": external}),
        "laughs.epub": zip_of({"META-INF/container.xml": laughs}),
        "external.docx": _swapped(
            good_docx,
            "word/document.xml",
            b"<!DOCTYPE x [<!ENTITY s SYSTEM 'file:///etc/passwd'>]><w:document xmlns:w='http://schemas.openxmlformats."
            b"org/wordprocessingml/2006/main'><w:body><w:p><w:r><w:t>&s;</w:t></w:r></w:p></w:body></w:document>",
        ),
        "cut.docx": good_docx[: len(good_docx) // 2],
        "cut.pdf": _pdf("x", "y")[0][:2000],
        "circle.pdf": _circle_pdf(),
        "noise.xlsx": _swapped(good_xlsx, "xl/worksheets/sheet1.xml", b"<worksheet><sheetData><row"),
        "picture.txt": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4,
        "noise.md": bytes(range(256)) * 40,
        "no-notebook.ipynb": b'{"cells": 7}',
        "no-chat.json": b'[{"mapping": 7, "chat_messages": 8}]',
        "old.doc": b"\xd0\xcf\x11\xe0" + b"\0" * 600,
        "empty.pdf": b"",
        "deep.json": b'{"mapping": ' + b"[" * 200_000,
    }


def luring(canary: Path, port: int) -> dict[str, bytes]:
    """Files that ask their reader for another file, or for a page of the network; and some that never end."""
    page = f"http://127.0.0.1:{port}/x"
    good_docx, good_xlsx, good_pptx = _docx("x", "y")[0], _xlsx("x", "y")[0], _pptx("x", "y")[0]
    relations = b"</Relationships>"
    remote = (
        '<Relationship Id="rIdX" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/{}" '
        'Target="{}" TargetMode="External"/></Relationships>'
    )
    entity = f"<!DOCTYPE x [<!ENTITY s SYSTEM '{canary.as_uri()}'><!ENTITY t SYSTEM '{page}'>]>"
    told = f"{entity}<w:document xmlns:w='http://schemas.openxmlformats.org/wordprocessingml/2006/main'><w:body><w:p>"

    def related(data: bytes, name: str, kind: str, target: str) -> bytes:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            before = archive.read(name)
        return _swapped(data, name, before.replace(relations, remote.format(kind, target).encode()))

    return {
        "template.docx": related(good_docx, "word/_rels/document.xml.rels", "attachedTemplate", page),
        "entity.docx": _swapped(
            good_docx, "word/document.xml", f"{told}<w:r><w:t>&s;&t;</w:t></w:r></w:p></w:body></w:document>".encode()
        ),
        "linked.xlsx": related(good_xlsx, "xl/_rels/workbook.xml.rels", "externalLink", canary.as_uri()),
        "wide.xlsx": _swapped(
            good_xlsx,
            "xl/worksheets/sheet1.xml",
            b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'
            b'<dimension ref="A1:XFD1048576"/><sheetData>'
            b'<row r="1048576"><c r="XFD1048576"><v>1</v></c></row></sheetData></worksheet>',
        ),
        "picture.pptx": related(good_pptx, "ppt/_rels/presentation.xml.rels", "image", page),
        "frames.html": f"<!doctype html><html><iframe src='{canary.as_uri()}'></iframe><img src='{page}'>"
        f"<link rel=stylesheet href='{page}'><script src='{page}'></script></html>".encode(),
        "deep.html": b"<!doctype html><html>" + b"<div>" * 300_000 + b"words",
        "entity.epub": zip_of({"META-INF/container.xml": f"{entity}<container>&s;&t;</container>"}),
        "endless.pdf": _endless_pdf(),
        "parts.eml": b"Subject: x\nContent-Type: multipart/mixed; boundary=b\n\n"
        + b"--b\nContent-Type: multipart/mixed; boundary=b\n\n" * 3000,
        "page.pdf": b"<!doctype html><html><title>T</title><p>a page that is called a PDF</p></html>",
        "outside.zip": zip_of({"../../outside.txt": "words from an archive", "/etc/outside.txt": "other words"}),
    }


def _endless_pdf() -> bytes:
    """A PDF that says it has a hundred million pages, which are all one, with a stream that unpacks to 200 MB."""
    stream = zlib.compress(b"BT /F1 9 Tf (words) Tj ET " * 8_000_000, 9)
    kids = b"3 0 R " * 200_000
    bodies = (
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%s]/Count 100000000>>" % kids,
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R>>",
        b"<</Length %d/Filter/FlateDecode>>stream\n%s\nendstream" % (len(stream), stream),
    )
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, 1):
        places.append(len(out))
        out += b"%d 0 obj%s endobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return out + b"xref\n0 5\n0000000000 65535 f \n%strailer<</Size 5/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (
        table,
        len(out),
    )


def _swapped(data: bytes, name: str, replaced: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members: dict[str, str | bytes] = {one: archive.read(one) for one in archive.namelist()}
    return zip_of(members | {name: replaced})


def _circle_pdf() -> bytes:
    """A PDF whose tree of pages is its own child, without end."""
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[2 0 R 2 0 R]/Count 999999999>>"]
    out = b"%PDF-1.4\n"
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj%s endobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return out + b"xref\n0 3\n0000000000 65535 f \n%strailer<</Size 3/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (
        table,
        len(out),
    )
