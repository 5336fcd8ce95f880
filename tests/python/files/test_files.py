"""Files of every kind are read with their places; broken and hostile ones are refused, within limits."""

from __future__ import annotations

import bisect
import datetime
import itertools
import os
import re
from email.message import EmailMessage
from pathlib import Path

import pytest

import everlong
from everlong.files.document import UnreadableFileError
from everlong.files.parsing import Limits, parse
from everlong.memory.origins import origin_tag
from everlong.memory.places import place_in
from support import TINY_MEMORY, byte_tokenizer, random_text, tiny_model
from support.made_files import KINDS, hostile, make_good, mbox_of, zip_of
from support.processes import run_script

HOSTILE = hostile()


@pytest.mark.slow
def test_every_kind_is_parsed_with_its_places(tmp_path: Path) -> None:
    for made in make_good(tmp_path):
        parsed = parse(made.path)
        found = [
            (document, ", ".join(filter(None, (document.name, section.place))))
            for document in parsed.documents
            for section in document.sections
            if made.sentence in section.text
        ]
        assert [place for _, place in found] == [made.place], made.path
        document = found[0][0]
        assert made.title in (document.title, ""), made.path
        assert made.title in document.text
        year = None if document.happened is None else datetime.datetime.fromtimestamp(document.happened).year
        assert year == made.year, made.path
        assert "document.write" not in document.text
    assert len(KINDS) == 18


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_broken_or_hostile_file_is_refused_within_limits(name: str, tmp_path: Path) -> None:
    file = tmp_path / "in" / name
    file.parent.mkdir()
    file.write_bytes(HOSTILE[name])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    try:
        parsed = parse(file, Limits(seconds=30))
    except UnreadableFileError as error:
        said = str(error)
    else:
        said = "read"
        assert name in ("external.docx", "cut.pdf", "no-chat.json", "deep.json"), name  # what is whole of it, or text
        assert "root:" not in "".join(document.text for document in parsed.documents)
    assert said
    assert "Traceback" not in said
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.slow
def test_a_folder_is_read_and_cited_at_the_right_places(tmp_path: Path) -> None:
    made = list(make_good(tmp_path / "good"))
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, TINY_MEMORY) as mm:
        for one in made:
            assert mm.read(one.path).tokens > 0
        for one in made:
            blocks = mm.memory.core.blocks.infos(tag=origin_tag(str(one.path)))
            text = "".join(mm.text(block.id) for block in blocks)
            begins = list(itertools.accumulate((len(mm.text(block.id)) for block in blocks), initial=0))
            for at in (0, len(one.sentence) - 1):  # its letters are tokens
                token = text.index(one.sentence) + at
                block = bisect.bisect_right(begins, token) - 1
                offset = token - begins[block]
                assert place_in(blocks[block].tags, offset, offset + 1) == one.place
            found = mm.recall(one.sentence, where=everlong.Where(origin=one.path))
            assert {recall.origin for recall in found} == {str(one.path)}
            assert any(_lies_in(one.place, recall.place) for recall in found), [recall.place for recall in found]


def test_a_file_of_many_texts_is_not_read_twice(tmp_path: Path) -> None:
    """In the same process and in another; a mail that is new to a mailbox is."""
    letters = ["first words " * 20, "second words " * 20, "third words " * 20]
    box = tmp_path / "letters.mbox"
    box.write_bytes(mbox_of(letters[:2], tmp_path))
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "memory", TINY_MEMORY) as mm:
        whole = mm.read(box).tokens
        again = mm.read(box)
        assert (again.tokens, again.already) == (0, whole)
    box.write_bytes(mbox_of(letters, tmp_path))
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "memory", TINY_MEMORY) as mm:
        third = mm.read(box)
        assert third.already == whole
        assert 240 < third.tokens < 400
        assert mm.read(box, again=True).tokens == whole + third.tokens


@pytest.mark.parametrize("stop", [200, 500, 900])
def test_places_are_right_behind_a_reading_that_was_cut_short(stop: int, tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    file.write_text("".join(f"# Part {number}\n{random_text(90, seed=number)}\n" for number in range(12)))

    def interrupt(done: int, _: int | None) -> None:
        if done > stop:
            raise KeyboardInterrupt

    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, TINY_MEMORY) as mm:
        with pytest.raises(KeyboardInterrupt):
            mm.read(file, progress=interrupt)
        assert mm.read(file).resumed_tokens > 0
        place = ""
        for block in mm.memory.core.blocks.infos():
            text = mm.text(block.id)
            for at in range(len(text)):  # its letters are tokens
                if text[at] == "#":
                    place = ""
                if place == "":
                    place = place_in(block.tags, at, at + 1)
                    told = re.match(r"# (Part \d+)", file.read_text()[block.begin + at :])
                    assert told is not None
                    assert told[1] == place
                assert place_in(block.tags, at, at + 1) == place


def test_one_bad_part_hides_no_other(tmp_path: Path) -> None:
    """A mail without a header, a broken attachment, an archive in an archive, too deep."""
    good = mbox_of(["first words", "second words"], tmp_path)
    (tmp_path / "letters.mbox").write_bytes(
        good.replace(b"\n\nFrom ", b"\n\nFrom x Mon Mar  2 10:00:00 2009\nno head\n\nFrom ")
    )
    letters = parse(tmp_path / "letters.mbox")
    assert [document.name for document in letters.documents] == ["message 1", "message 3"]
    assert letters.passed_over == (("message 2", "is no mail: it begins with no header"),)
    message = EmailMessage()
    message["Subject"] = "Papers"
    message.set_content("see below")
    for name, data in (("a.md", b"# Rivers\nwords"), ("b.docx", b"PK\x03\x04 and no more")):
        message.add_attachment(data, maintype="application", subtype="octet-stream", filename=name)
    (tmp_path / "a.eml").write_bytes(bytes(message))
    mail = parse(tmp_path / "a.eml")
    assert [(one.name, one.sections[-1].place) for one in mail.documents] == [("", "Papers"), ("a.md", "Rivers")]
    assert [name for name, _ in mail.passed_over] == ["b.docx"]
    nested: bytes = b"deepest words"
    for depth in range(5):
        nested = zip_of({"deep.txt" if depth == 0 else "in.zip": nested, "near.txt": f"words {depth}"})
    (tmp_path / "nested.zip").write_bytes(nested)
    archive = parse(tmp_path / "nested.zip")
    assert [one.text for one in archive.documents] == ["words 2", "words 3", "words 4"]
    assert "3 files deep" in archive.passed_over[0][1]


def _lies_in(place: str, cited: str) -> bool:
    """Whether a citation names a place, or a stretch that it lies in, as "row 16 to row 18"."""
    first, _, last = ([int(number) for number in re.findall(r"\d+", part)] for part in cited.partition(" to "))
    here = [int(number) for number in re.findall(r"\d+", place)]
    return place in cited or (bool(last) and first <= here <= [*first[: len(first) - len(last)], *last])


def test_a_file_is_told_by_what_it_is(tmp_path: Path) -> None:
    """Not by its name: a PDF that is called a text, a page that is called a PDF, a text that is called a document."""
    kinds = {
        "page.pdf": b"<!-- a --><!-- b --><!DOCTYPE html><title>T</title><h1>Top</h1><p>words</p>",
        "note.docx": b"only words",
        "latin.txt": "Ein Käfer läuft über die Brücke und grüßt die schöne Müllerin, die müde heimgeht.".encode(
            "cp1252"
        ),
        "marked.md": "# Über\nGrüße".encode("utf-16"),
        "lines.txt": b"one\r\ntwo\rthree",
        "some.json": b'{"mapping": 7, "and": "no chat"}',
    }
    found = {}
    for name, data in kinds.items():
        (tmp_path / name).write_bytes(data)
        (document,) = parse(tmp_path / name).documents
        found[name] = [(section.place, section.text.strip()) for section in document.sections][-1]
    assert found.pop("page.pdf") == ("Top", "Top\n\nwords")
    assert "Käfer läuft über die Brücke" in found.pop("latin.txt")[1]
    assert found == {
        "note.docx": ("", "only words"),
        "marked.md": ("Über", "# Über\nGrüße"),
        "lines.txt": ("", "one\ntwo\nthree"),
        "some.json": ("", '{"mapping": 7, "and": "no chat"}'),
    }


def test_what_is_no_file_and_what_takes_too_much_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pdf")
    (tmp_path / "page.html").write_text("<p>" + "words " * 1000)
    (tmp_path / "large.html").write_text("<p>" + "words " * 5_000_000)
    for name, limits, why in (
        ("pipe.pdf", Limits(), "no ordinary file"),
        ("page.html", Limits(seconds=0.001), "more than 0.001 seconds"),
        ("large.html", Limits(ram=64 << 20), "RAM"),
        ("page.html", Limits(file_bytes=1000), "at most 1,000"),
        ("page.html", Limits(text_bytes=1000), "more than"),
    ):
        with pytest.raises(UnreadableFileError, match=why):
            parse(tmp_path / name, limits)
    with pytest.raises(IsADirectoryError):
        parse(tmp_path)


@pytest.mark.parametrize(
    "action",
    [
        "open('/etc/passwd')",
        "open('/proc/self/environ', 'rb')",
        "open(os.path.join(sys.prefix, 'new'), 'w')",
        "os.open('/tmp', os.O_RDONLY)",
        "socket.socket()",
        "socket.getaddrinfo('localhost', 80)",
        "os.system('true')",
        "subprocess.run(['true'])",
        "os.fork()",
        "os.remove('/no such file')",
        "os.mkdir('/tmp/new')",
        "shutil.rmtree('/no such folder')",
        "tempfile.mkdtemp(dir='/tmp')",
        "os.kill(os.getppid(), 0)",
    ],
)
def test_the_child_process_may_do_nothing_but_compute(action: str) -> None:
    script = (
        "import os, shutil, socket, subprocess, sys, tempfile\n"
        "from everlong.files.child import guard\n"
        "sys.addaudithook(guard((os.path.realpath(sys.prefix) + os.sep,)))\n"
        f"try:\n    {action}\nexcept PermissionError as error:\n    print('refused', error)\n"
    )
    assert "refused a file that is read may not do this" in run_script(script).stdout


@pytest.mark.parametrize(
    "text",
    ["# " + " " * 2_000_000 + "x", "<!---->" * 2000, "From " + "1234 " * 100_000, "[" * 3_000_000, "---\n" * 500_000],
    ids=["heading", "comments", "mailbox", "brackets", "front"],
)
@pytest.mark.parametrize("ending", ["md", "pdf", "txt", "json"])
def test_no_pattern_takes_longer_than_its_text(text: str, ending: str, tmp_path: Path) -> None:
    """A pattern that goes back and forth would take hours; the test's time limit ends that."""
    (tmp_path / f"file.{ending}").write_text(text)
    assert "".join(document.text for document in parse(tmp_path / f"file.{ending}").documents) == text
