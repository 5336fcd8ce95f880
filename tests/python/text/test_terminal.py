"""What is printed cannot drive a terminal, and is otherwise the text that it is."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from everlong.text.terminal import escape_controls, escaping_console, line_by_line, print_escaped

TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}  # bidirectional classes of UAX 9
MARKS = "\u061c\u200e\u200f"


def drives(character: str) -> bool:
    """Whether a terminal, or what lays out its text, obeys the character; told by Unicode's own tables."""
    category = unicodedata.category(character)
    turns = unicodedata.bidirectional(character) in TURNING or character in MARKS
    return category in ("Cc", "Cs", "Zl", "Zp") or turns


ANY = st.text(st.characters(codec=None) | st.sampled_from("\x1b\x07\r\n\t\x9b\x85\u202e\u2066\u2028" + MARKS))


@given(ANY)
def test_nothing_that_is_shown_drives_a_terminal(text: str) -> None:
    assert not any(map(drives, escape_controls(text)))
    assert {character for character in escape_controls(text, lines=True) if drives(character)} <= set("\n\t")
    escape_controls(text).encode("utf-8")


@given(ANY)
def test_all_else_is_shown_as_it_is(text: str) -> None:
    harmless = "".join(character for character in text if not drives(character))
    assert escape_controls(harmless) == harmless
    in_lines = "".join(character for character in text if not drives(character) or character in "\n\t")
    assert escape_controls(in_lines, lines=True) == in_lines


@given(ANY)
def test_what_was_escaped_can_be_read_back(text: str) -> None:
    escaped = escape_controls(text.replace("\\", ""))
    assert escaped.encode("ascii", "backslashreplace").decode("unicode_escape") == text.replace("\\", "")


@pytest.mark.parametrize("text", ["\x1b[2J", "\x9b31m", "\x1b]0;title\x07", "\u202egnp.exe", "a\rb", "[red]x[/red]"])
def test_a_console_escapes_what_it_draws(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    console = escaping_console()
    console.print(table)
    console.print(text, highlight=False)
    line_by_line(console)(text)
    print_escaped(text)
    printed = capsys.readouterr().out
    assert not any(drives(character) for character in printed if character != "\n")
    left = escape_controls(text.replace("\x07", "").replace("\r", ""))  # rich leaves these two out
    assert "".join(printed.split()).count("".join(left.split())) >= 3


def test_a_console_keeps_its_own_colours(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    escaping_console(stderr=True).print("dim\x1b[0m", style="dim", highlight=False)
    printed = capsys.readouterr().err
    assert printed.count("\x1b[2m") == 1
    assert "dim\\x1b[0m" in printed
