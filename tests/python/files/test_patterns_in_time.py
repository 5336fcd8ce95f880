"""Texts of a million letters that patterns could take quadratic time for are read within the limits of one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from everlong.files import parsing

MANY = 500_000
LIMITS = parsing.Limits(seconds=60)  # each takes a second or two; in quadratic time, hours
HEAD = "From: a@example.org\nSubject: c\n"
EVENT = "[Events]\nDialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,"


def output(text: str) -> str:
    shown = {"output_type": "display_data", "data": {"text/plain": text, "text/html": "<p>other</p>"}}
    return json.dumps({"cells": [{"cell_type": "code", "source": "found", "outputs": [shown]}]})


CASES: dict[str, tuple[str, Callable[[], str]]] = {
    "a voice that has no end": ("vtt", lambda: "WEBVTT\n\n00:01.000 --> 00:02.000\nfound <v" + " " * MANY),
    "a drawing that has no end": ("ass", lambda: EVENT + "found {" + r"\p1" * MANY),
    "parameters of rich text": ("eml", lambda: HEAD + "Content-Type: text/enriched\n\nfound " + "<param>" * MANY),
    "lines that go on": (
        "eml",
        lambda: HEAD + "Content-Type: text/plain; format=flowed\n\nfound " + "ab \n" * 4 * MANY,
    ),
    "parameters": ("eml", lambda: HEAD + "Content-Type: text/plain; " + ";" * MANY + "\n\nfound"),
    "a quote in parameters": ("eml", lambda: HEAD + 'Content-Type: text/plain; a="' + ";" * MANY + "\n\nfound"),
    "letters before an accent": ("txt", lambda: "a" * 2 * MANY + " found caf\xe9"),
    "a spot that may be an object": ("ipynb", lambda: output("<" + "object " * MANY)),
    "titles in titles": ("html", lambda: "found" + "<span title=q>" * (MANY // 4)),
    "powers in powers": ("html", lambda: "found" + "<sup>" * (MANY // 4)),
    "powers behind empty elements": (
        "html",
        lambda: "found" + "<span class=a></span>" * (MANY // 4) + "<sup></sup>" * (MANY // 4),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_long_texts_are_read_in_time(case: str, tmp_path: Path) -> None:
    ending, text = CASES[case]
    file = tmp_path / f"file.{ending}"
    file.write_text(text(), encoding="latin-1")
    assert "found" in "".join(one.text for one in parsing.parse(file, LIMITS).documents)
