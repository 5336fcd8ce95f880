"""Office files are told by what they are, whatever they are called; those that nobody reads are refused by name."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from everlong.files.document import NoTextError
from everlong.files.parsing import parse
from support.made_files import zip_of
from support.office_files import NAMESPACES, SHEET, SHEETS, SLIDES, WORD, package, read, word_file

_OPEN, _MICROSOFT = "application/vnd.openxmlformats-officedocument.", "application/vnd.ms-"
SENTENCE = "The notice period is ninety days."
PARAGRAPH = f"<w:p><w:r><w:t>{SENTENCE}</w:t></w:r></w:p>"
TEXT_BODY = f"<p:txBody><a:p><a:r><a:t>{SENTENCE}</a:t></a:r></a:p></p:txBody>"
CELL = f"<row><c t='inlineStr'><is><t>{SENTENCE}</t></is></c></row>"
SLIDE_LIST = "<p:sldIdLst><p:sldId id='1' r:id='rId1'/></p:sldIdLst>"
SHEET_LIST = "<sheets><sheet name='One' r:id='rId1'/></sheets>"
FILES = {
    WORD: word_file(PARAGRAPH),
    SLIDES: package(
        {
            "a/p.xml": f"<p:presentation {NAMESPACES}>{SLIDE_LIST}</p:presentation>",
            "a/s.xml": f"<p:sld {NAMESPACES}><p:sp>{TEXT_BODY}</p:sp></p:sld>",
        },
        {"a/p.xml": [("slide", "s.xml")]},
        SLIDES,
    ),
    SHEETS: package(
        {
            "b/w.xml": f"<workbook xmlns='{SHEET}' {NAMESPACES}>{SHEET_LIST}</workbook>",
            "b/s.xml": f"<worksheet xmlns='{SHEET}'><sheetData>{CELL}</sheetData></worksheet>",
        },
        {"b/w.xml": [("worksheet", "s.xml")]},
        SHEETS,
    ),
}
TYPES = {
    "docx": (WORD, WORD),
    "docm": (WORD, f"{_MICROSOFT}word.document.macroEnabled.main+xml"),
    "dotx": (WORD, f"{_OPEN}wordprocessingml.template.main+xml"),
    "dotm": (WORD, f"{_MICROSOFT}word.template.macroEnabledTemplate.main+xml"),
    "pptx": (SLIDES, SLIDES),
    "pptm": (SLIDES, f"{_MICROSOFT}powerpoint.presentation.macroEnabled.main+xml"),
    "ppsx": (SLIDES, f"{_OPEN}presentationml.slideshow.main+xml"),
    "ppsm": (SLIDES, f"{_MICROSOFT}powerpoint.slideshow.macroEnabled.main+xml"),
    "potx": (SLIDES, f"{_OPEN}presentationml.template.main+xml"),
    "potm": (SLIDES, f"{_MICROSOFT}powerpoint.template.macroEnabled.main+xml"),
    "xlsx": (SHEETS, SHEETS),
    "xlsm": (SHEETS, f"{_MICROSOFT}excel.sheet.macroEnabled.main+xml"),
    "xltx": (SHEETS, f"{_OPEN}spreadsheetml.template.main+xml"),
    "xltm": (SHEETS, f"{_MICROSOFT}excel.template.macroEnabled.main+xml"),
}


def replaced(data: bytes, was: str, now: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as made:
        return zip_of({name: made.read(name).replace(was.encode(), now.encode()) for name in made.namelist()})


@pytest.mark.parametrize("ending", TYPES)
def test_a_package_is_told_by_its_content_types(ending: str) -> None:
    kind, stated = TYPES[ending]
    for suffix in (ending, "zip", ""):
        found = read(replaced(FILES[kind], kind, stated), suffix)
        assert SENTENCE in found.text
        assert found.passed_over == {}


def test_a_package_without_its_types_is_told_by_its_parts() -> None:
    with zipfile.ZipFile(io.BytesIO(FILES[WORD])) as made:
        members: dict[str, str | bytes] = {name: made.read(name) for name in made.namelist()}
    del members["[Content_Types].xml"]
    assert "ninety" in read(zip_of(members)).text
    members["_rels/.rels"] = b"no XML"
    broken = read(zip_of(members | {"[Content_Types].xml": b"<"}))
    assert "ninety" in broken.text
    assert set(broken.passed_over) == {"_rels/.rels", "content types"}


@pytest.mark.parametrize("kind", ["text", "text-template", "spreadsheet", "presentation", "graphics-template"])
def test_opendocument_is_told_by_its_mimetype_or_its_manifest(kind: str) -> None:
    name = f"application/vnd.oasis.opendocument.{kind}"
    content = (
        "<o:document-content xmlns:o='urn:oasis:names:tc:opendocument:xmlns:office:1.0' "
        "xmlns:t='urn:oasis:names:tc:opendocument:xmlns:text:1.0'><o:body><o:text><t:p>ninety</t:p></o:text></o:body>"
        "</o:document-content>"
    )
    manifest = f"<m:manifest xmlns:m='x'><m:file-entry m:media-type='{name}' m:full-path='/'/></m:manifest>"
    assert read(zip_of({"mimetype": name, "content.xml": content})).text.strip() == "ninety"
    assert read(zip_of({"content.xml": content, "META-INF/manifest.xml": manifest})).text.strip() == "ninety"


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        ("EncryptedPackage", "is encrypted"),
        ("ENCRYPTEDPACKAGE", "is encrypted"),
        ("WordDocument", "an old Word: save it as .docx"),
        ("Workbook", "an old Excel: save it as .xlsx"),
        ("Book", "an old Excel"),
        ("PowerPoint Document", "an old PowerPoint: save it as .pptx"),
        ("Something", "an old Office"),
    ],
)
def test_an_old_or_encrypted_file_is_refused_by_name(stream: str, why: str, tmp_path: Path) -> None:
    """It may be large: names of streams may stand far behind its head, and like words anywhere in its text."""
    entry = stream.encode("utf-16-le").ljust(128, b"\0")
    text = b"x" + "EncryptedPackage".encode("utf-16-le") + b"\0\0"
    data = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1".ljust(512, b"\0") + text.ljust(1 << 16, b"\0") + entry
    (tmp_path / "a.docx").write_bytes(data)
    with pytest.raises(NoTextError, match=why):
        parse(tmp_path / "a.docx")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("application/vnd.ms-excel.sheet.binary.macroEnabled.main", "xlsb"),
        ("application/vnd.ms-visio.drawing.main+xml", "Visio"),
        ("application/vnd.ms-package.xps-fixeddocument+xml", "XPS"),
    ],
)
def test_other_packages_are_refused_by_name(kind: str, why: str) -> None:
    with pytest.raises(NoTextError, match=why):
        read(package({"x/x.bin": "x"}, {}, kind))


def test_an_archive_stays_one() -> None:
    data = zip_of({"letters/a.docx": FILES[WORD], "old/b.doc": b"\xd0\xcf\x11\xe0" + b"\0" * 600, "c.txt": "plain"})
    found = read(data)
    assert [one.name for one in found.documents] == ["letters/a.docx", "c.txt"]
    assert list(found.passed_over) == ["old/b.doc"]


def test_no_entity_is_resolved_and_none_grows() -> None:
    laughs = "".join(f"<!ENTITY l{at} '{f'&l{at - 1};' * 10}'>" for at in range(1, 12))
    for entities, used in (
        ("<!ENTITY s SYSTEM 'file:///etc/passwd'>", "&s;"),
        (f"<!ENTITY l0 'lol'>{laughs}", "&l11;"),
    ):
        body = f"<w:body>{PARAGRAPH}<w:p><w:r><w:t>{used}</w:t></w:r></w:p></w:body>"
        document = f"<!DOCTYPE x [{entities}]><w:document {NAMESPACES}>{body}</w:document>"
        found = read(package({"word/document.xml": document}, {}, WORD))
        assert found.text.strip() == SENTENCE
        assert "entities" in found.passed_over["the text"]
