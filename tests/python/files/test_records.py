"""What a child tells is not trusted: nonsense is an error, and costs no more RAM than it may."""

from __future__ import annotations

import io
import json
import tracemalloc

import pytest

from everlong.files import records
from everlong.files.document import Document, NoTextError, Section, UnreadableFileError
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


def test_what_says_that_there_is_no_text_is_told_apart_from_what_may_pass() -> None:
    for no_text in (True, False):
        told = io.BytesIO()
        Writer(told).error("is half a pair: \ud800", no_text=no_text)
        told.seek(0)
        with pytest.raises(UnreadableFileError, match=r"half a pair: \?") as raised:
            read(told, 1000)
        assert isinstance(raised.value, NoTextError) == no_text
    with pytest.raises(UnreadableFileError) as raised:
        read(io.BytesIO(ABOUT), 1000)  # cut short: nobody knows why
    assert not isinstance(raised.value, NoTextError)


@pytest.mark.parametrize("fields", [["section"], ["document"], ["title"], ["author"], ["passed over", "why"]])
def test_names_take_no_more_ram_than_they_may(fields: list[str]) -> None:
    """Not even one part as long as a line may be, told as often as parts may be."""
    about = {"document": "", "title": "", "author": "", "happened": None}
    begin = {"section": {"section": "", "bytes": 0}, "passed over": {}}.get(fields[0], about)
    line = json.dumps({**begin, **{field: "a" * 8000 for field in fields}}).encode() + b"\n"
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableFileError, match="names and places"):
            read(Endless(ABOUT, line), 256 << 20)  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


class Endless:
    """A child that tells the same for ever, behind its first line."""

    def __init__(self, first: bytes, line: bytes) -> None:
        self._next, self._line = first, line

    def readline(self, most: int) -> bytes:
        told, self._next = self._next, self._line
        return told


@pytest.mark.parametrize(
    "told",
    [
        *(
            ABOUT.replace(b'"%b": ""' % field, b'"%b": "\\ud800"' % field)
            for field in (b"document", b"title", b"author")
        ),
        ABOUT + section(b"text").replace(b"p. 1", b"\\udfff"),
        ABOUT + section(b"text").replace(b'"p. 1"', b"[1]"),
        b'{"passed over": "\\ud800", "why": ""}\n',
        b'{"passed over": "", "why": "\\ud800"}\n',
        ABOUT.replace(b"null", b"1e300"),  # no datetime holds it
        ABOUT.replace(b"null", b"-1e300"),
    ],
    ids=range(9),
)
def test_names_that_are_none_and_times_that_none_is_are_refused(told: bytes) -> None:
    with pytest.raises(UnreadableFileError):
        read(io.BytesIO(told + END), 1000)
