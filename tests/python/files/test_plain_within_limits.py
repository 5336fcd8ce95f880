"""Plain text, Markdown and code have the limits that a PDF has; what is small is read at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files import document, parsing, plain
from everlong.files.document import Budget, Section, UnreadableFileError
from everlong.files.parsing import Limits, parse
from support.made_files import zip_of


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(ram=40 << 20), "RAM"),
        (Limits(seconds=0.001), "more than 0.001 seconds"),
        (Limits(file_bytes=1_000_000), "at most 1,000,000 are read"),
        (Limits(text_bytes=1_000_000), "more than 1,000,000 bytes of text"),
    ],
)
@pytest.mark.parametrize("ending", ["txt", "md", "py", "json", "log", "unknown"])
def test_a_long_text_has_limits(ending: str, limits: Limits, why: str, tmp_path: Path) -> None:
    """Also where it is one line."""
    (tmp_path / f"long.{ending}").write_text("a" * (20 << 20))
    with pytest.raises(UnreadableFileError, match=why):
        parse(tmp_path / f"long.{ending}", limits)


def test_a_small_text_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand notes would wait for a thousand of them."""

    def refused(*given: object, **named: object) -> None:
        raise AssertionError("a process is started")

    monkeypatch.setattr(subprocess, "Popen", refused)
    for ending in ("txt", "md", "py", "json", ""):
        (tmp_path / f"note.{ending}").write_text("# Rivers\nwords")
        assert parse(tmp_path / f"note.{ending}").plain
    (tmp_path / "long.txt").write_text("a" * (parsing.SMALL + 1))
    with pytest.raises(AssertionError):
        parse(tmp_path / "long.txt")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" \n",
        b"one\r\ntwo\rthree",
        b"---\ntitle: Rivers\nauthor: Ada\ndate: 2019-05-06\n---\n# One\nwords\n```\n# no heading\n```\n# Two\nmore",
        b"---\nauthor: Ada\n" + b"more: words\n" * 90 + b"title: Rivers\n---\n# One\n",
        "# Über\nGrüße 🌊".encode("utf-16"),
        b"\xef\xbb\xbf# marked\n" + b"line\n" * 50,
        b"zero\0bytes",
    ],
)
@pytest.mark.parametrize("ending", ["txt", "md", "py", "json"])
def test_a_child_reads_what_this_process_would(
    data: bytes, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"note.{ending}").write_bytes(data)

    def read() -> object:
        try:
            return parse(tmp_path / f"note.{ending}")
        except UnreadableFileError as error:
            return str(error)

    at_once = read()
    monkeypatch.setattr(parsing, "SMALL", -1)
    assert read() == at_once


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "line"), [("py", "ab\n"), ("md", "# a\n")])
def test_what_a_long_text_costs_the_main_process(ending: str, line: str, tmp_path: Path) -> None:
    """It is bounded by the bytes of the file, however short its lines are."""
    file = tmp_path / f"long.{ending}"
    file.write_text(line * ((6 << 20) // len(line)))
    script = (
        "import resource, sys\n"
        "from everlong.files.parsing import parse\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "documents = parse(sys.argv[1]).documents\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10, len(documents))\n"
    )
    out = subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=True).stdout
    taken, documents = map(int, out.split())
    assert documents == 1
    assert taken < 16 * file.stat().st_size + (64 << 20)  # the first sections may be as short as they are


def test_many_short_sections_are_joined_and_few_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_SHORT_SECTIONS", 10)
    sections = [Section(f"row {number}", "ab\n") for number in range(2000)]
    thrift = Budget()
    joined = [*thrift.joined(sections[:1000]), *thrift.joined(sections[1000:])]
    assert "".join(one.text for one in joined) == "ab\n" * 2000
    assert joined[:10] == sections[:10]
    assert 6000 // 64 <= len(joined) <= 10 + 6000 // 64 + 2
    begins = {section.place: 3 * number for number, section in enumerate(sections)}
    at = 0
    for one in joined:  # each is cited by the place of its first words
        assert begins[one.place] == at
        at += len(one.text)
    long = [Section(f"p. {number}", "x" * 100) for number in range(2000)]
    assert list(Budget().joined(long)) == long


LETTERS = st.text(st.sampled_from("a# \t`~\n\r\x0b\x0c\u2028"), max_size=60)


@given(LETTERS)
def test_headings_are_found_as_line_by_line(text: str) -> None:
    """Compared with a loop over the lines."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    wanted: list[list[str]] = []
    fenced = False
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        fenced ^= re.match(r" {0,3}(```|~~~)", line) is not None
        if not wanted or (not fenced and re.match(r" {0,3}#{1,6}[ \t]", line)):
            wanted.append([])
        wanted[-1].append(line)
    assert [section.text for section in plain.of_text(text, "md").sections] == ["".join(one) for one in wanted]


@given(st.lists(st.sampled_from(["", "a", "bb \x0c", "\u2028"]), max_size=70))
def test_lines_are_counted_as_an_editor_counts_them(lines: list[str]) -> None:
    text = "\n".join(lines)
    whole = text.split("\n")
    sections = plain.of_text(text, "py").sections
    assert "".join(section.text for section in sections) == text
    for section in sections:
        first, last = map(int, section.place.removeprefix("lines ").split("-"))
        assert section.text.removesuffix("\n") == "\n".join(whole[first - 1 : last])
        assert last - first < 20


def test_zero_bytes_within_an_archive_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zip_of({"data.bin": b"\0" * 100, "near.md": "words"}))
    parsed = parse(tmp_path / "a.zip")
    assert [one.name for one in parsed.documents] == ["near.md"]
    assert parsed.passed_over == (("data.bin", "holds no text: it has zero bytes"),)


def test_a_link_is_followed_only_where_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("words")
    (tmp_path / "link.txt").symlink_to("real.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    assert parse(tmp_path / "link.txt").documents[0].text == "words"
    with pytest.raises(OSError, match="is a link"):
        parse(tmp_path / "link.txt", follow_links=False)
    with pytest.raises(UnreadableFileError, match="no ordinary file"):
        parse(tmp_path / "pipe.txt")


@pytest.mark.parametrize("name", ["a.\udcff", "a." + "x" * 200, "a.\u00e9", "a. \n", "a.-c"])
def test_no_name_troubles_the_child(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "SMALL", -1)
    (tmp_path / "file").write_text("words")
    assert parse(tmp_path / "file", name=name).documents[0].text == "words"
