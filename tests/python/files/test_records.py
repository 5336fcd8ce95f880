"""What a child tells is not trusted: nonsense is an error, and costs no more RAM than it may."""

from __future__ import annotations

import io
import json

import pytest

from everlong.files import records
from everlong.files.document import Document, Section, UnreadableFileError
from everlong.files.records import Writer, read

ABOUT = json.dumps({"document": "", "title": "", "author": "", "happened": None}).encode() + b"\n"
END = b'{"end": true}\n'


def section(text: bytes, size: object = None) -> bytes:
    return json.dumps({"section": "p. 1", "bytes": len(text) if size is None else size}).encode() + b"\n" + text


def test_what_is_told_comes_as_it_was() -> None:
    told = io.BytesIO()
    writer = Writer(told)
    found = [
        Document((Section("p. 1", 'a\n{"end": true}\n'), Section("", "")), "name", "Title", "Ada", 1.5),
        Document((Section("é", "Grüße 🌊\r\n\0"),)),
        Document(()),
    ]
    for one in found:
        writer.document(one, one.sections)
        writer.passed_over("picture.png", "is a picture")
    writer.document(Document((Section("", "a\ud800b"),)), [Section("", "a\ud800b")])  # half a pair
    writer.end()
    told.seek(0)
    parsed = read(told, 1000)
    assert list(parsed.documents) == [*found, Document((Section("", "a?b"),))]
    assert parsed.passed_over == (("picture.png", "is a picture"),) * 3


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"\n",
        b"no JSON\n",
        b"[]\n",
        b"7\n",
        b"null\n",
        b"{}\n",
        ABOUT,
        ABOUT + section(b"cut short", 100),
        ABOUT + section(b"", -1),
        ABOUT + section(b"", "many"),
        ABOUT + section(b"", None) + END[:5],
        ABOUT.replace(b"null", b"NaN") + END,
        ABOUT.replace(b"null", b"1e999") + END,
        ABOUT.replace(b"null", b'"soon"') + END,
        ABOUT.replace(b'"title": "", ', b"") + END,
        b"[" * 16_000 + b"\n",
        b'{"a": "' + b"x" * 100_000,
        b"\xff\xfe\n",
        b'{"error": "is broken"}\n',
    ],
    ids=range(20),
)
def test_nonsense_is_an_error(told: bytes) -> None:
    with pytest.raises(UnreadableFileError):
        read(io.BytesIO(told), 1000)


def test_no_more_is_read_than_may_be() -> None:
    """Neither in one text nor in many, and nothing behind the end."""
    with pytest.raises(UnreadableFileError, match="more than 1,000 bytes"):
        read(io.BytesIO(ABOUT + section(b"", 10**18)), 1000)
    with pytest.raises(UnreadableFileError, match="more than 1,000 bytes"):
        read(io.BytesIO(ABOUT + section(b"x" * 300) * 4 + END), 1000)
    whole = io.BytesIO(ABOUT + section(b"x" * 500) * 2 + END + b"more")
    assert read(whole, 1000).documents[0].text == "x" * 1000
    assert whole.read() == b"more"


@pytest.mark.parametrize("part", [ABOUT, ABOUT + section(b""), b'{"passed over": "a", "why": "b"}\n'])
def test_parts_are_counted(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_MOST_PARTS", 100)
    with pytest.raises(UnreadableFileError, match="parts"):
        read(io.BytesIO(part * 101 + END), 1000)
    assert read(io.BytesIO((ABOUT + section(b"x" * 100)) * 200 + END), 1 << 20).documents[199].text == "x" * 100
