"""Tables of text: no cell is lost or moved, whatever their dialect is."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files import tables
from everlong.files.document import Document
from everlong.files.parsing import parse


def table(text: str, suffix: str = "csv", encoding: str = "utf-8") -> Document:
    (document,) = tables.read(text.encode(encoding), suffix)
    return document


def lines(text: str, suffix: str = "csv") -> list[str]:
    return [section.text.removesuffix("\n") for section in table(text, suffix).sections]


def written(rows: list[list[str]], **dialect: Any) -> str:
    out = io.StringIO()
    csv.writer(out, **dialect).writerows(rows)
    return out.getvalue()


WORDS = st.text(st.sampled_from("abXÄ東 ,;|\t.\"'-7\n"), min_size=1, max_size=12).map(lambda text: f"w{text}x")
DIALECTS = st.fixed_dictionaries(
    {
        "delimiter": st.sampled_from("\t;|,"),
        "quoting": st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
        "lineterminator": st.sampled_from(["\n", "\r\n"]),
    }
)


@given(
    st.integers(2, 5).flatmap(lambda width: st.lists(st.lists(WORDS, min_size=width, max_size=width), min_size=8)),
    DIALECTS,
)
def test_every_cell_of_a_random_dialect_stands_in_its_row_and_column(rows: list[list[str]], dialect: Any) -> None:
    names = ["name", "date", "city", "note", "price"][: len(rows[0])]
    found = lines(written([names, *rows], **dialect))
    assert found[0] == " | ".join(names)
    for row, line in zip(rows, found[1:], strict=True):
        assert line == ", ".join(f"{name}: {cell}" for name, cell in zip(names, row, strict=True))


@given(st.lists(st.text(st.sampled_from("ab,;\"' \n\\"), max_size=20), min_size=1, max_size=20))
def test_no_word_of_a_text_that_is_no_table_is_lost(parts: list[str]) -> None:
    text = "word" + "".join(parts)
    found = "".join(lines(text))
    assert re.sub(r"[^ab]", "", found).count("a") >= text.count("a")
    assert found.count("b") >= text.count("b")


@pytest.mark.parametrize("at", [0, 2, 400])
def test_a_quote_that_is_doubled_late_moves_no_column(at: int) -> None:
    rows = [[f"a{n}", f"nothing special about number {n}", "Berlin"] for n in range(at)]
    text = written([["id", "remark", "city"], *rows, ["z", 'She said "no", then left', "Paris"]], quoting=csv.QUOTE_ALL)
    assert lines(text)[-1] == 'id: z, remark: She said "no", then left, city: Paris'


@pytest.mark.parametrize(
    ("head", "rows", "named"),
    [
        (["Land", "2019", "2020"], [["France", "10", "20"], ["Malta", "n/a", "n/a"], ["Spain", "3", "4"]], True),
        (["Name", "Born", "Died"], [["Ada", "1815", "1852"], ["Alan", "1912", "1954"]], True),
        (["Ada", "1815", "1852"], [["Alan", "1912", "1954"], ["Grace", "1906", "1992"]], False),
        (["Ada", "36"], [["Alan", "41"], ["Grace", "85"]], False),
        (["Ada", "Lovelace"], [["Alan", "Turing"], ["Grace", "Hopper"]], False),
        (["first", "last"], [["Ada", "Lovelace"], ["Alan", "Turing"]], True),
        (["Name", "City"], [["Ada", "London"], ["Alan", "Wilmslow"]], True),
        (["1", "2", "3"], [["x", "y", "z"], ["u", "v", "w"]], True),
        (["", "a", "b"], [["x", "1", "2"], ["y", "3", "4"]], True),
        (["2024-03-05", "rent"], [["2024-03-06", "food"], ["2024-03-07", "rent"]], False),
        (["day", "what"], [["2024-03-06", "food"], ["2024-03-07", "rent"]], True),
    ],
)
def test_whether_a_row_names_the_columns(head: list[str], rows: list[list[str]], named: bool) -> None:
    document = table(written([head, *rows]))
    said = "row 1 names the columns" if named else "no row names the columns"
    assert document.details == (f"cells are separated by commas; {said}",)
    for row, section in zip(rows, document.sections[1:], strict=True):
        cells = [f"{name}: {cell}" if name and named else cell for name, cell in zip(head, row, strict=True)]
        assert section.text == ", ".join(cells) + "\n"


def test_a_line_names_the_delimiter() -> None:
    for mark in ";#^":
        assert lines(f"sep={mark}\r\nname{mark}note\r\nAda{mark}a, b\r\n") == ["name | note", "name: Ada, note: a, b"]


def test_rows_of_other_lengths_keep_their_cells() -> None:
    assert lines("name,age\nAda,36,London,Ockham\nAlan\n,41\n\nGrace,85\n") == [
        "name | age",
        "name: Ada, age: 36, London, Ockham",
        "name: Alan",
        "age: 41",
        "name: Grace, age: 85",
    ]
    assert lines("Ada,,36\nAlan,,\nGrace,Hopper,85\n") == ["Ada, , 36", "Alan", "Grace, Hopper, 85"]


def test_a_line_above_the_names_is_no_name() -> None:
    assert lines("A report of March\n\nname,age\nAda,36\n")[-1] == "name: Ada, age: 36"


def test_a_wrong_quote_costs_its_own_row_alone() -> None:
    rows = [f"n{n},fine" for n in range(60)]
    rows[20] = 'n20,"5 inch'
    rows[40] = 'n40,"a ""doubled"", quote"'
    rows[50] = 'n50,"she said "no" to it"'
    document = table("name,remark\n" + "\n".join(rows))
    found = [section.text for section in document.sections]
    assert len(found) == 61
    assert found[21] == 'name: n20, remark: "5 inch\n'
    assert found[41] == 'name: n40, remark: a "doubled", quote\n'
    assert "she said no" in found[51].replace('"', "")
    assert found[60] == "name: n59, remark: fine\n"
    assert document.details[-1].endswith("from row 22, 52 on")


def test_quotes_behind_backslashes() -> None:
    text = 'name,note\n"Ada","He said \\"no\\", then left"\n"Alan","C:\\new"\n'
    assert lines(text)[1:] == ['name: Ada, note: He said "no", then left', "name: Alan, note: C:\\new"]


def test_apostrophes_and_inches_are_letters() -> None:
    rows = [["who", "words"], ["Ada", "it's 'fine', 'really', 'so'"], ["Bob", "don't, can't, 5\" high"]]
    assert lines(written(rows))[1:] == [
        "who: Ada, words: it's 'fine', 'really', 'so'",
        "who: Bob, words: don't, can't, 5\" high",
    ]
    quoted = written([["who", "words"], ["Ada", "a, b"], ["Bob", "c, d"]], quotechar="'")
    assert lines(quoted)[1:] == ["who: Ada, words: a, b", "who: Bob, words: c, d"]


def test_no_text_of_quotes_takes_longer_than_its_length() -> None:
    """Each quote opens a cell that never ends; the test's time limit ends reading each anew to the end."""
    text = 'a,"b\n' + 'x,"y"z\n' * 5_000
    assert sum(line.count("y") for line in lines(text)) == 5_000
    assert lines("a," * 100_000 + "b")[0].endswith("b")


def test_a_table_is_read_in_a_child_with_its_details(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes("nom\tâge\nÉloïse\t36\nZoé\t7\n".encode("cp1252"))
    (document,) = parse(tmp_path / "a.tsv").documents
    assert document.sections[-1].text == "nom: Zoé, âge: 7\n"
    assert document.sections[-1].place == "row 3"
    guessed, separated = document.details
    assert guessed.startswith("encoding guessed from its letters: windows-1252")
    assert separated == "cells are separated by tabs; row 1 names the columns"
