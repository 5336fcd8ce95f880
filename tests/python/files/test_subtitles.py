"""Subtitles: every cue is read, with who speaks and without markup, however its lines stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files import subtitles
from everlong.files.document import Document, NoTextError, PassedOverError


def found(text: str, encoding: str = "utf-8") -> list[Document | PassedOverError]:
    return list(subtitles.read(text.encode(encoding), "srt"))


def cues(text: str, encoding: str = "utf-8") -> list[tuple[str, str]]:
    document = found(text, encoding)[0]
    assert isinstance(document, Document)
    return [(section.place, section.text.removesuffix("\n")) for section in document.sections]


WORDS = st.lists(
    st.sampled_from(["words", "a < b", "c > d", "é", "42", "{x}", "->", "Ada:", "&", "<NARRATOR>"]), min_size=1
)
LINES = st.lists(WORDS.map(" ".join), min_size=1, max_size=3)
TAGS = st.sampled_from(["{}", "<i>{}</i>", "<font color='#fff'>{}</font>", "<b>{}", "<c.yellow>{}</c>", "{{\\an8}}{}"])


@given(
    st.lists(st.tuples(LINES, TAGS), min_size=1, max_size=8),
    st.sampled_from(["srt", "vtt", "sbv", "ass"]),
    st.booleans(),
)
def test_every_word_of_every_cue_comes_back(made: list[tuple[list[str], str]], form: str, blank: bool) -> None:
    """Also behind a blank line within a cue, and in a cue of which only times say that it begins."""
    text = {"vtt": "WEBVTT\n\n", "ass": "[Events]\n"}.get(form, "")
    for number, (lines, tag) in enumerate(made):
        tagged = tag.format(("\n\n" if blank else "\n").join(lines))
        if form == "srt":
            text += f"{number + 1}\n00:00:{number:02},000 --> 00:00:{number + 1:02},000\n{tagged}\n\n"
        elif form == "vtt":
            text += f"00:{number:02}.000 --> 00:{number + 1:02}.000 line:0\n{tagged}\n\n"
        elif form == "sbv":
            text += f"0:00:{number:02}.000,0:00:{number + 1:02}.000\n{tagged}\n\n"
        else:
            shown = "{\\i1}" + "\\N".join(lines)
            text += f"Dialogue: 0,0:00:{number:02}.00,0:00:{number + 1:02}.00,Default,,0,0,0,,{shown}\n"
    wanted = [" ".join(lines) for lines, _ in made]
    if form == "ass":  # braces hide there, and are named
        wanted = [" ".join(line.replace("{x}", "").split()) for line in wanted]
    assert [said for _, said in cues(text)] == [line for line in wanted if line]


def test_who_speaks() -> None:
    voices = "00:01.000 --> 00:02.000\n<v.loud Ada Lovelace>I <b>will</b>.</v> <v Bob>So\nwill I.</v>\n"
    assert cues("WEBVTT\n\n" + voices) == [("00:01", "Ada Lovelace: I will. Bob: So will I.")]
    events = (
        "[Events]\nFormat: Start, Name, Text\nDialogue: 0:00:01.00,Ada,Well, {\\k20}yes\\Nno{\\p1}m 0 0 l 1{\\p0}.\n"
    )
    assert cues(events) == [("0:00:01", "Ada: Well, yes no .")]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1\n00:00:01 --> 00:00:04\nfirst\n\n2\n00:00:05,5 --> 00:00:08,000\nsecond\n", ["first", "second"]),
        ("1\n00:00:01,000 --> 00:00:04,000\nfirst\n2\n00:00:05,000 --> 00:00:08,000\nsecond", ["first", "second"]),
        (
            "1\n0:00:01,000 --> 0:00:04,000\n\nfirst\n\n\n17\n\n2\n0:00:05,000 --> 0:00:06,000\nsecond",
            ["first 17", "second"],
        ),
        ("00:00:01,000 --> 00:00:04,000\n42\n00:00:05,000 --> 00:00:08,000\nsecond", ["42", "second"]),
        ("WEBVTT\n\nid-1/2\n00:01.000 --> 00:02.000\nfirst\n\nOn the road\n00:03.000 --> 00:04.000\nsecond", None),
        (
            "WEBVTT\n\n00:01.000 --> 00:02.000\n<00:01.500>Tom &amp; Jerry &lt;3&nbsp;x <ruby>東<rt>とう</rt></ruby>",
            None,
        ),
    ],
)
def test_cues_begin_where_their_times_stand(text: str, wanted: list[str] | None) -> None:
    said = [line for _, line in cues(text.replace("\n", "\r\n"))]
    assert said == (
        wanted or {True: ["first On the road", "second"], False: ["Tom & Jerry <3 x 東(とう)"]}["id-1" in text]
    )


def test_what_is_not_shown_is_named() -> None:
    head = "WEBVTT - A trip\nKind: captions\n\nNOTE by Ada\nfor Bob\n\nSTYLE\n::cue {}\n\n"
    text = head + "00:01.000 --> 00:02.000\nwords\n\nNOTE\nmore\n"
    document, note = found(text)
    assert isinstance(document, Document)
    assert (document.title, document.text) == ("A trip", "words\n")
    assert isinstance(note, PassedOverError)
    assert (note.name, str(note)) == ("NOTE", "is not shown: 2 of them")
    times = "0,0:00:01.00,0:00:04.00,D,,0,0,0,,"
    lines = ("[Script Info]", "Title: A trip", "[Events]", f"Dialogue: {times}{{a pun}}words", f"Comment: {times}no")
    events = "\n".join(lines)
    document, *hidden = found(events)
    assert isinstance(document, Document)
    assert (document.title, document.text) == ("A trip", "words\n")
    assert [one.name for one in hidden if isinstance(one, PassedOverError)] == ["comment in braces", "Comment"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
def test_encodings(encoding: str) -> None:
    text = "1\r\n00:00:01,000 --> 00:00:04,000\r\nÇa va très bien, déjà à la fenêtre.\r\n"
    assert cues(text, encoding) == [("00:00:01", "Ça va très bien, déjà à la fenêtre.")]


def test_what_has_no_cue_is_refused_and_no_line_takes_long() -> None:
    with pytest.raises(NoTextError, match="no cue"):
        found("only words\n")
    assert len(cues("00:01.000 --> 00:02.000\n" + "<v " * 300_000 + "{\\a" * 300_000)[0][1]) > 1_000_000
