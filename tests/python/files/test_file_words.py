"""The ledger of words, benchmarks/file_words.py: what a file says is counted right, without a line of everlong.

Every figure of docs/lab/measured/files.md rests on it.
"""

from __future__ import annotations

import ast
import importlib
import io
import json
from collections import Counter
from email.message import EmailMessage
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files.parsing import parse
from support.made_files import make_good, zip_of
from support.repository import REPOSITORY

SCRIPT = REPOSITORY / "benchmarks" / "file_words.py"
if not SCRIPT.exists():
    pytest.skip("no benchmarks beside these tests", allow_module_level=True)
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
MC = "http://schemas.openxmlformats.org/markup-compatibility/2006"
# None of them lies in two others.
MARKED = st.lists(st.sampled_from([f"wx{letter}z" for letter in "abcdefghij"]), max_size=30)


@pytest.fixture(scope="module")
def count() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        return importlib.import_module("file_words")


def test_it_shares_no_code_with_what_it_examines() -> None:
    imported = set()
    for node in ast.walk(ast.parse(SCRIPT.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert not imported & {"everlong", "support", "selectolax", "pypdf", "docx", "pptx", "openpyxl"}


@given(MARKED, MARKED)
def test_words_are_compared_as_multisets(count: ModuleType, there: list[str], read: list[str]) -> None:
    """One that is read twice makes up for no other, and for none that stands there twice."""
    found = count.Comparison.of([count.Part(("p. 1",), " ".join(there))], " ".join(read), ())
    assert found.silent == Counter(there) - Counter(read)
    assert found.more == (Counter(read) - Counter(there)).total()
    assert (found.there, found.read, found.named) == (len(there), len(read), 0)


@given(st.lists(st.text("abc", min_size=3, max_size=8), min_size=1, max_size=20), st.data())
def test_a_letter_that_is_read_stands_for_one_letter_at_most(
    count: ModuleType, words: list[str], data: st.DataObject
) -> None:
    """However it is cut into words."""
    letters = "".join(words)
    kept = letters[: data.draw(st.integers(0, len(letters)))]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(kept)), max_size=3)))
    pieces = [kept[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(kept)], strict=True)]
    lost = count.Comparison.of([count.Part((), " ".join(words))], " ".join(pieces), ()).silent
    assert len("".join(lost.elements())) >= len(letters) - len(kept)


def test_a_word_in_one_piece_is_found_in_two_and_the_other_way_round(count: ModuleType) -> None:
    for there, read in (
        ("waterfall and river", "water fall and river"),
        ("water fall and river", "waterfall and river"),
    ):
        assert not count.Comparison.of([count.Part((), there)], read, ()).silent
    assert count.Comparison.of([count.Part((), "water fall water")], "waterfall", ()).silent == Counter(["water"])


def test_a_part_that_is_named_is_not_lost_in_silence(count: ModuleType) -> None:
    parts = [count.Part(("p. 1",), "first river"), count.Part(("p. 11",), "second river")]
    found = count.Comparison.of(parts, "", [("p. 11", "is a picture")])
    assert (found.named, found.silent) == (2, Counter(["first", "river"]))
    assert found.where == {"first": "p. 1", "river": "p. 1"}


def test_titles_numbers_and_deleted_words_have_rules_of_their_own(count: ModuleType) -> None:
    parts = [
        count.Part((), "Rivers", once=True),
        count.Part((), "struck", deleted=True),
        count.Part(("B2",), "0.125", either=("12.5",)),
    ]
    found = count.Comparison.of(parts, "12.5 %", (), cited="Rivers, row 2")
    assert (found.silent, found.deleted) == (Counter(), 1)
    assert count.Comparison.of(parts, "7 %", ()).silent == Counter(["rivers", "0", "125"])


def test_names_of_columns_are_taken_out_of_rows(count: ModuleType) -> None:
    """Else the value `name` would be found in the names that stand before each value."""
    parts = count.parts_of("a.csv", b'name,remark\nname,"note: well, so"\n')
    read = count.without_labels("name | remark\nremark: note: well, so", parts)
    assert count.Comparison.of(parts, read, ()).silent == Counter(["name"])
    read = count.without_labels("name | remark\nname: name, remark: note: well, so", parts)
    found = count.Comparison.of(parts, read, ())
    assert (found.silent, found.more) == (Counter(), 0)


def words(count: ModuleType, name: str, data: bytes, *, deleted: bool = False) -> list[str]:
    parts = [part for part in count.parts_of(name, data) if part.deleted is deleted]
    return [word for part in parts for word in count.words_of(part.text)]


def test_a_docx_is_counted_part_by_part_once(count: ModuleType) -> None:
    """A word in two runs is one, a text box stands there twice for older programs, what is deleted is apart."""
    body = (
        "<w:p><w:r><w:t>wat</w:t></w:r><w:r><w:t>er</w:t></w:r><w:r><w:br/><w:t>fall</w:t></w:r></w:p>"
        "<w:p><w:del><w:r><w:delText>struck</w:delText></w:r></w:del><w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom>"
        "<w:r><w:instrText>PAGE</w:instrText></w:r></w:p>"
        "<mc:AlternateContent><mc:Choice><w:p><w:r><w:t>boxed</w:t></w:r></w:p></mc:Choice>"
        "<mc:Fallback><w:p><w:r><w:t>boxed</w:t></w:r></w:p></mc:Fallback></mc:AlternateContent>"
    )
    header = f"<w:hdr xmlns:w='{W}'><w:p><w:r><w:t>above</w:t></w:r></w:p></w:hdr>"
    document = f"<w:document xmlns:w='{W}' xmlns:mc='{MC}'><w:body>{body}</w:body></w:document>"
    data = zip_of({"word/document.xml": document, "word/header3.xml": header})
    assert words(count, "a.docx", data) == ["water", "fall", "boxed", "above"]
    assert words(count, "a.docx", data, deleted=True) == ["struck", "moved"]
    found = count.Comparison.of(count.parts_of("a.docx", data), "water fall boxed", [("header", "is not read")])
    assert (found.named, found.silent) == (1, Counter())


def test_cells_of_a_workbook_are_counted_as_they_may_be_written(count: ModuleType) -> None:
    import datetime

    import openpyxl

    book, out = openpyxl.Workbook(), io.BytesIO()
    for row in (["river", "share"], ["Spree", 0.125], ["Havel", datetime.datetime(2024, 3, 5)], ["Dahme", "=B2*2"]):
        book.active.append(row)
    book.save(out)
    parts = count.parts_of("a.xlsx", out.getvalue())
    for share, day in (("0.125", "2024-03-05"), ("12.5%", "5 March 2024")):
        text = f"openpyxl Sheet\nriver share Spree {share} Havel {day} Dahme"
        lost = count.Comparison.of(parts, text, [("B4", "is a formula without a value")])
        assert lost.silent == Counter(), share
        assert count.Comparison.of(parts, text.replace(share, "13"), ()).silent.total() > 0


def test_a_page_is_counted_without_scripts(count: ModuleType) -> None:
    page = b"<title>Top</title><p>wa<b>ter</b> <script>no</script><style>no</style><li>left<li>right<noscript>still"
    assert words(count, "a.html", page) == ["water", "left", "right", "top", "still"]
    latin = b"<p>plain K\xe4fer" + b"<meta charset=windows-1252>"
    assert words(count, "b.html", b"<p>plain K\xe4fer end") == ["plain", "end"]  # no letter is guessed
    assert "käfer" in words(count, "c.html", latin)


def test_a_mail_is_counted_once_where_it_has_two_forms(count: ModuleType) -> None:
    mail = EmailMessage()
    mail["Subject"] = "Papers"
    mail.set_content("the same words")
    mail.add_alternative("<p>the same words</p>", subtype="html")
    mail.add_attachment("more words", filename="note.txt")
    found = words(count, "a.eml", bytes(mail))
    assert sorted(found) == sorted(["papers", "the", "same", "words", "more", "words"])
    short = EmailMessage()
    short.set_content("see the page")
    short.add_alternative("<p>" + "all of it " * 5 + "</p>", subtype="html")
    assert words(count, "b.eml", bytes(short)).count("all") == 5


def test_subtitles_and_notebooks_are_counted_without_their_machinery(count: ModuleType) -> None:
    vtt = b"WEBVTT\n\nNOTE hidden\n\nits name\n00:01.000 --> 00:02.000\n<v Ada>one &amp; <i>two</i>\n\n"
    vtt += b"00:03.000 --> 00:04.000\n3\n"
    assert words(count, "a.vtt", vtt) == ["ada", "one", "two", "3"]
    outputs = [
        {"data": {"text/plain": ["<IPython.core.display.HTML object>"], "text/html": ["<b>shown</b>"]}},
        {"ename": "E", "evalue": "v", "traceback": ["\x1b[0;31mred\x1b[0m"]},
    ]
    cells = [{"cell_type": "code", "source": ["a = ", "1"], "outputs": outputs}]
    assert words(count, "a.ipynb", json.dumps({"cells": cells}).encode()) == ["a", "1", "shown", "red"]


@pytest.mark.slow
def test_of_good_files_nothing_is_lost(count: ModuleType, tmp_path: Path) -> None:
    """Of every kind that the libraries' own writers make. Their sentences are counted, and read."""
    for made in make_good(tmp_path):
        data = made.path.read_bytes()
        parts = count.parts_of(made.path.name, data)
        if made.path.suffix != ".json":  # the count of a text goes by its encoding alone
            assert not Counter(count.words_of(made.sentence)) - Counter(words(count, made.path.name, data)), made.path
        parsed = parse(made.path)
        text = "\n".join(document.text for document in parsed.documents)
        cited = "\n".join(f"{one.title} {one.author}" for one in parsed.documents)
        assert count.Comparison.of(parts, text, parsed.passed_over, cited).silent == Counter(), made.path
