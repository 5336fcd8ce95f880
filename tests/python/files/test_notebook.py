"""Notebooks of every version are read with all that their cells show."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files.document import Document, NoTextError, PassedOverError
from everlong.files.notebook import read


def _read(found: Any) -> tuple[list[tuple[str, str]], list[str]]:
    told = list(read(found if isinstance(found, bytes) else json.dumps(found).encode(), "ipynb"))
    sections = [(one.place, one.text.strip()) for d in told if isinstance(d, Document) for one in d.sections]
    return sections, [f"{one.name}: {one}" for one in told if isinstance(one, PassedOverError)]


def _code(*outputs: Any, **cell: Any) -> dict[str, Any]:
    made = {"cell_type": "code", "source": ["x"], "metadata": {}, "outputs": list(outputs), **cell}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [made]}


def _shown(**forms: Any) -> dict[str, Any]:
    return {"output_type": "display_data", "metadata": {}, "data": {n.replace("__", "/"): v for n, v in forms.items()}}


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({"output_type": "stream", "name": "stdout", "text": ["one\n", "two\n"]}, "one\ntwo"),
        ({"output_type": "execute_result", "data": {"text/plain": ["3"], "text/html": "<b>4</b>"}}, "3"),
        (_shown(text__markdown=["**bold**"]), "**bold**"),
        (_shown(text__html=["<table><tr><td>1<td>2</table>"]), "1 | 2"),
        (_shown(text__plain="<IPython.core.display.HTML object>", text__html="<b>bold</b>"), "bold"),
        (_shown(text__plain="<Styler at 0x7f00>", text__latex="$x$"), "$x$"),
        (_shown(text__plain="<Thing object>"), "<Thing object>"),
        (_shown(application__json={"a": "b"}), '{"a": "b"}'),
        (_shown(text__custom=["own", " words"]), "own words"),
        (_shown(image__svg_xml="", **{"image/svg+xml": "<svg><text>Map</text></svg>"}), "Map"),
        (
            {"output_type": "error", "ename": "E", "evalue": "no key", "traceback": ["\x1b[0;31mE\x1b[0m: no key"]},
            "E: no key",
        ),
        ({"output_type": "error", "ename": "E", "evalue": "no key", "traceback": ["line 1"]}, "E: no key\nline 1"),
        ({"output_type": "error", "ename": "E", "evalue": "no key", "traceback": None}, "E: no key"),
        ({"output_type": "stream", "text": "\x1b[31mred\x1b[0m \x1b]0;title\x07words"}, "red words"),
        ({"output_type": "pyout", "prompt_number": 1, "text": ["ONE"], "html": "<b>no</b>"}, "ONE"),
        ({"output_type": "pyerr", "ename": "E", "evalue": "old", "traceback": []}, "E: old"),
        ({"output_type": "display_data", "latex": ["$y$"]}, "$y$"),
        ({"output_type": "display_data", "data": None}, ""),
    ],
)
def test_an_output_is_read_in_its_plainest_form(output: dict[str, Any], text: str) -> None:
    assert _read(_code(output)) == ([("cell 1", f"x\n{text}".strip())], [])


def test_what_is_not_read_is_named_with_its_place() -> None:
    cell = {"cell_type": "markdown", "source": "![a](attachment:a.png)", "attachments": {"a.png": {"image/png": "iV"}}}
    found = _code(
        _shown(image__png="iV", text__plain="<Figure>"), _shown(**{"application/vnd.plotly.v1+json": {"a": 1}})
    )
    found["cells"] += [cell, 7, {"cell_type": "raw", "source": "raw words"}]
    sections, over = _read(found)
    assert sections == [("cell 1", "x\n<Figure>"), ("cell 2", cell["source"]), ("cell 4", "raw words")]
    assert over == [
        "cell 1, output 1: is a picture, or a film: image/png",
        "cell 1, output 2: is shown by a program: application/vnd.plotly.v1+json",
        "cell 2, a.png: is an attachment: only its name is read",
        "cell 3: is no cell",
    ]


def test_older_notebooks_have_worksheets() -> None:
    sheets = [
        {"cells": [{"cell_type": "code", "input": ["x = 1"], "outputs": [{"output_type": "pyout", "text": ["ONE"]}]}]},
        {"cells": [{"cell_type": "heading", "level": 2, "source": ["Two"]}]},
        {"metadata": {}},
        7,
    ]
    three = {"nbformat": 3, "metadata": {"name": "Old"}, "worksheets": sheets}
    assert _read(three)[0] == [("cell 1", "x = 1\nONE"), ("cell 2", "Two")]


@pytest.mark.parametrize("odd", [None, [None], [7], [[]], "text", [{"data": [1]}], [{"data": {"text/plain": {}}}]])
def test_one_odd_cell_does_not_cost_the_rest(odd: Any) -> None:
    found = _code()
    found["cells"] = [{"cell_type": "code", "source": 7, "outputs": odd}, {"cell_type": "markdown", "source": "words"}]
    assert _read(found)[0][-1] == ("cell 2", "words")


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"{}", b'{"cells": 7}', b"[" * 100_000])
def test_what_is_no_notebook_is_refused(data: bytes) -> None:
    with pytest.raises(NoTextError, match="no notebook"):
        _read(data)


_WORDS = st.text("abc defg \n", min_size=1, max_size=20).filter(str.strip)
_LINES = st.one_of(_WORDS, _WORDS.map(lambda text: text.splitlines(keepends=True)))
_OUTPUTS = st.one_of(
    _LINES.map(lambda lines: {"output_type": "stream", "name": "stdout", "text": lines}),
    _LINES.map(lambda lines: {"output_type": "execute_result", "data": {"text/plain": lines}}),
    _WORDS.map(lambda text: {"output_type": "error", "ename": "", "evalue": text, "traceback": []}),
)


@given(st.lists(st.tuples(_LINES, st.lists(_OUTPUTS, max_size=3)), min_size=1, max_size=5))
def test_all_words_of_a_notebook_come_back_in_order(cells: list[tuple[Any, list[dict[str, Any]]]]) -> None:
    words: list[str] = []
    made = []
    for source, outputs in cells:
        words += "".join(source).split()
        for one in outputs:
            words += "".join(one.get("text") or one.get("evalue") or one["data"]["text/plain"]).split()
        made.append({"cell_type": "code", "source": source, "outputs": outputs})
    sections, over = _read({"cells": made, "nbformat": 4})
    assert " ".join(text for _, text in sections).split() == words
    assert over == []
