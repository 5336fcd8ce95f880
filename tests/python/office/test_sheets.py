"""Workbooks are read whole: every cell as it is shown, what hangs on it, and what a sheet has beside cells."""

from __future__ import annotations

import datetime
import io
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from everlong.files.document import NoTextError
from everlong.office.number_formats import formatted
from support.examples import examples
from support.made_files import zip_of
from support.office_files import NAMESPACES, SHEET, SHEETS, STRICT, package, read


def book(
    rows: str, parts: Mapping[str, str] | None = None, related: Sequence[tuple[str, str]] = (), more: str = ""
) -> bytes:
    """A workbook of one sheet. `related`: relationships of the sheet."""
    sheets = "<sheets><sheet name='One' r:id='rId1'/></sheets>"
    made = {
        "xl/w.xml": f"<workbook xmlns='{SHEET}' {NAMESPACES}>{sheets}</workbook>",
        "xl/s.xml": f"<worksheet xmlns='{SHEET}'><sheetData>{rows}</sheetData></worksheet>",
    }
    beside = [(name.rpartition("/")[2].partition(".")[0], name.removeprefix("xl/")) for name in parts or {}]
    return package(
        made | dict(parts or {}), {"xl/w.xml": [("worksheet", "s.xml"), *beside], "xl/s.xml": related}, SHEETS
    )


def lines(data: bytes) -> list[str]:
    return [line for line in read(data).text.splitlines() if line][1:]


def made_by(write: Callable[[Any], None]) -> bytes:
    """What openpyxl writes of a workbook."""
    import openpyxl

    made, out = openpyxl.Workbook(), io.BytesIO()
    write(made)
    made.save(out)
    return out.getvalue()


GRIDS = st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=8)


@pytest.mark.slow
@examples(60)
@given(GRIDS, st.booleans())
def test_all_words_of_random_sheets_come_back_in_order(grid: list[list[int]], constant_memory: bool) -> None:
    """Written by xlsxwriter, with strings in the sheet or shared. Names of columns are said again before each value."""
    import xlsxwriter

    words, out = [], io.BytesIO()
    made = xlsxwriter.Workbook(out, {"constant_memory": constant_memory})
    sheet = made.add_worksheet()
    for row, cells in enumerate(grid):
        for column, kind in enumerate(cells):
            if kind:
                words.append(f"w{len(words)}")
                said = [words[-1], made.add_format({"bold": True}), "x" * 150]
                sheet.write(row, column, words[-1]) if kind == 1 else sheet.write_rich_string(
                    row, column, *said[:1], *said[1:]
                )
    made.close()
    found = read(out.getvalue())
    values = [cell.rpartition(": ")[2] for line in found.text.splitlines()[2:] for cell in re.split(r" \| |, ", line)]
    assert [word for value in values for word in re.findall(r"w\d+", value)] == words


SHOWN = [  # as Excel shows them, but for dates and groups of digits, which depend on its language
    (0.125, "0.0%", "12.5%"),
    (0.1 + 0.2, "General", "0.3"),
    (0.1 + 0.2, "0.00", "0.30"),
    (2.71828, "0.00", "2.72"),
    (0.005, "0.00", "0.01"),
    (1250.5, "#,##0.00 €", "1250.50 €"),
    (1250.5, '#,##0.00\\ "EUR"', "1250.50 EUR"),
    (12, "[$€-407] 0.0", "€ 12.0"),
    (-5, "0.00;(0.00)", "(5.00)"),
    (-5, "0.00;[Red]-0.00", "-5.00"),
    (-0.001, "0.00", "0.00"),
    (0, '0;-0;"none"', "none"),
    (0, '#,##0;-#,##0;"-"', "0"),
    (1234.5, '_($* #,##0.00_);_($* (#,##0.00);_($* "-"??_);_(@_)', "$1234.50"),
    (0, '_($* #,##0.00_);_($* (#,##0.00);_($* "-"??_);_(@_)', "0"),
    (7, "000", "007"),
    (12_345_678, "#,##0", "12345678"),
    (1_500_000, '0.0,,"M"', "1.5M"),
    (123_456, "0.00E+00", "1.23E+05"),
    (1 / 3, "0.###", "0.333"),
    (3, "0.###", "3"),
    (45_356, "dd.mm.yyyy", "2024-03-05"),
    (45_356, "[$-407]d. mmmm yyyy", "2024-03-05"),
    (45_356.5, "yyyy-mm-dd hh:mm", "2024-03-05 12:00"),
    (0.75, "hh:mm AM/PM", "18:00"),
    (1.25, "[h]:mm", "30:00"),
    (59, "yyyy-mm-dd", "1900-02-28"),
    (61, "yyyy-mm-dd", "1900-03-01"),
    (5_551_234, "000-0000", "5551234"),  # whole, where a format is not followed
    (0.5, "# ?/?", "0.5"),
    (17, ";;;", "17"),
    (3e6, "yyyy-mm-dd", "3000000"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "shape", "expected"), SHOWN)
def test_a_number_is_read_as_it_is_shown(value: float, shape: str, expected: str) -> None:
    assert formatted(float(value), shape) == expected


@given(st.floats(allow_nan=False, allow_infinity=False), st.text('0#?.,%E+-;"\\_*[]hmsdyAP/@ $€General', max_size=20))
def test_no_format_is_too_odd(value: float, shape: str) -> None:
    assert isinstance(formatted(value, shape), str)


@given(st.datetimes(datetime.datetime(1900, 3, 1), datetime.datetime(2200, 1, 1)), st.booleans())
def test_dates_are_those_that_were_written(moment: datetime.datetime, from_1904: bool) -> None:
    from openpyxl.utils.datetime import CALENDAR_MAC_1904, CALENDAR_WINDOWS_1900, to_excel

    moment = moment.replace(microsecond=0, second=0)
    assume(moment.year > 1904 or not from_1904)
    value = to_excel(moment, CALENDAR_MAC_1904 if from_1904 else CALENDAR_WINDOWS_1900)
    assert formatted(float(value), "yyyy-mm-dd hh:mm", from_1904=from_1904) == moment.isoformat(" ", "minutes")


def test_cells_are_whole_and_as_they_are_shown() -> None:
    long = "words " * 3000 + "end"

    def write(made: Any) -> None:
        sheet = made.active
        for row in (
            ["what", "value"],
            ["long", long],
            ["lines", "a\nb"],
            ["true", True],
            ["error", "#N/A"],
            ["whole", 1234567890123456],
        ):
            sheet.append(row)
        for shape, value in (
            ("0.0%", 0.125),
            ("dd.mm.yyyy", datetime.datetime(2024, 3, 5)),
            ("hh:mm", datetime.time(14, 2)),
        ):
            sheet.append([shape, value])
            sheet.cell(sheet.max_row, 2).number_format = shape

    assert lines(made_by(write)) == [
        *("what | value", f"what: long, value: {long}", "what: lines, value: a b", "what: true, value: TRUE"),
        *("what: error, value: #N/A", "what: whole, value: 1234567890123456", "what: 0.0%, value: 12.5%"),
        *("what: dd.mm.yyyy, value: 2024-03-05", "what: hh:mm, value: 14:02"),
    ]


def test_strings_are_read_with_their_runs_and_without_their_sounds() -> None:
    strings = (
        f"<sst xmlns='{SHEET}'><si><r><t>w0</t></r><r><rPr><b/></rPr><t> w1</t></r><rPh><t>w9</t></rPh></si>"
        "<si><t>w2_x000D_</t><rPh><t>w9</t></rPh></si></sst>"
    )
    rows = "<row><c t='s'><v>0</v></c></row><row><c t='s'><v>1</v></c></row>"
    rows += "<row><c t='inlineStr'><is><r><t>w3</t></r></is></c></row>"
    assert lines(book(rows, {"xl/sharedStrings.xml": strings})) == ["w0 w1", "w2", "w3"]
    missing = read(book(rows + "<row><c t='s'><v>7</v></c></row>", {"xl/sharedStrings.xml": strings}))
    assert missing.passed_over == {"One": "1 texts of cells are missing in the shared strings"}


def test_formulas_that_nobody_computed_are_read_as_they_are_written() -> None:
    rows = (
        "<row><c r='A1'><f>B1*2</f></c></row><row><c r='A2'><f>B2*2</f><v>14</v></c></row>"
        "<row><c r='A3'><f t='shared' si='0' ref='A3:A4'>B3*2</f><v/></c></row>"
        "<row><c r='A4'><f t='shared' si='0'/></c></row>"
        "<row><c r='A5' t='str'><f>B5</f><v></v></c></row>"
    )
    assert lines(book(rows)) == ["=B1*2", "14", "=B3*2", "=B3*2 (as in A3)"]


def test_comments_stand_behind_their_row() -> None:
    """A comment with answers has a copy for older programs, which is left out."""
    comments = (
        f"<comments xmlns='{SHEET}'><authors><author>Ada</author><author>tc=1</author></authors><commentList>"
        "<comment ref='B1' authorId='0'><text><r><t>w2</t></r></text></comment>"
        "<comment ref='A1' authorId='1'><text><t>w9</t></text></comment>"
        "<comment ref='D9' authorId='0'><text><t>w5</t></text></comment></commentList></comments>"
    )
    threads = (
        "<x xmlns='y'><threadedComment ref='A1' personId='p'><text>w1</text></threadedComment>"
        "<threadedComment ref='A1' personId='q'><text>w1b</text></threadedComment></x>"
    )
    parts = {"xl/c.xml": comments, "xl/t.xml": threads, "xl/person.xml": "<x><p id='p' displayName='Bob'/></x>"}
    rows = "<row r='1'><c r='A1'><v>0</v></c></row><row r='2'><c r='A2'><v>1</v></c></row>"
    found = read(book(rows, parts, [("comments", "c.xml"), ("threadedComment", "t.xml")]))
    assert list(found.places)[1:] == [
        ("One, row 1", "0\n[comment on A1 of Bob] w1\n[comment on A1] w1b\n[comment on B1 of Ada] w2"),
        ("One, row 2", "1"),
        ("One, row 9", "[comment on D9 of Ada] w5"),
    ]


def test_a_value_has_the_name_of_its_own_table() -> None:
    """Titles, two tables below each other, and one of which only its statement tells that it is one."""

    def write(made: Any) -> None:
        rows = (["Prices"], [], ["item", "price"], ["lamp", 10], ["sum", "?"], [], ["tenant", "rent"], ["Ada", 900])
        for row in (*rows, [], ["Bob", "Rome"], ["Eve", "Bonn"]):
            made.active.append(row)

    assert lines(made_by(write)) == [
        *("Prices", "item | price", "item: lamp, price: 10", "item: sum, price: ?"),
        *("tenant | rent", "tenant: Ada, rent: 900", "Bob | Rome", "Eve | Bonn"),
    ]

    def write_stated(made: Any) -> None:
        from openpyxl.worksheet.table import Table

        for row in (["a", "b", None, "c", "d"], [1, 2, None, "x", "y"], [3, 4, None, "z", "u"]):
            made.active.append(row)
        for name, where in (("Left", "A1:B3"), ("Right", "D2:E3")):
            made.active.add_table(Table(displayName=name, ref=where))

    assert lines(made_by(write_stated)) == ["a | b | c | d", "1 | 2 | x | y", "a: 3, b: 4, x: z, y: u"]


def test_hidden_sheets_and_what_stands_beside_cells_are_read() -> None:
    def write(made: Any) -> None:
        from openpyxl.chart import BarChart, Reference

        made.active.append(["w0", 1])
        made.active.merge_cells("C1:D4")
        made.active["C1"] = "w1"
        chart = BarChart()
        chart.title = "w2"
        chart.add_data(Reference(made.active, min_col=2, min_row=1, max_row=1))
        made.active.add_chart(chart)
        made.active.oddHeader.center.text = "w3 && more"
        hidden = made.create_sheet("Back")
        hidden.sheet_state = "veryHidden"
        hidden.append(["w4"])
        chartsheet = made.create_chartsheet("Chart")
        another = BarChart()
        another.title = "w5"
        chartsheet.add_chart(another)

    found = read(made_by(write))
    assert found.words == ["w0", "w1", "w2", "w3", "w4", "w5"]
    assert "w3 & more" in found.text
    assert ("Back (hidden sheet), row 1", "w4") in found.places
    assert ("Sheet, shapes", "w2") in found.places


def test_strict_workbooks_and_the_calendar_of_1904_are_read() -> None:
    def write(made: Any) -> None:
        from openpyxl.utils.datetime import CALENDAR_MAC_1904

        made.epoch = CALENDAR_MAC_1904
        made.active.append(["when", datetime.datetime(2024, 3, 5)])

    data = made_by(write)
    with zipfile.ZipFile(io.BytesIO(data)) as made:
        members = {name: made.read(name) for name in made.namelist()}
    for was, now in STRICT.items():
        members = {name: one.replace(was.encode(), now.encode()) for name, one in members.items()}
    assert lines(zip_of(members)) == lines(data) == ["when | 2024-03-05 00:00"]


def test_a_sheet_is_read_around_its_damage() -> None:
    row = "<row r='{0}'><c r='A{0}'><v>{0}</v></c></row>"
    rows = [row.format(at) for at in range(1, 6)]
    rows[2] = "<row r='3'><c r='A3'><v>3<v></c></row>"
    found = read(book("".join(rows)))
    assert [place for place, _ in found.places][1:3] == ["One, row 1", "One, row 2"]
    assert {"4", "5"} <= set(re.findall(r"\d", found.text))
    assert "only read in part" in found.passed_over["One"]
    with pytest.raises(NoTextError, match="One is damaged"):
        read(book("<row"))


def test_a_missing_sheet_costs_itself_alone() -> None:
    names = "".join(f"<sheet name='S{at}' r:id='rId{at}'/>" for at in (1, 2, 3))
    workbook = f"<workbook xmlns='{SHEET}' {NAMESPACES}><sheets>{names}</sheets></workbook>"
    sheet = f"<worksheet xmlns='{SHEET}'><sheetData><row><c><v>7</v></c></row></sheetData></worksheet>"
    related = [("worksheet", f"s{at}.xml") for at in (1, 2, 3)]
    found = read(package({"xl/w.xml": workbook, "xl/s1.xml": sheet, "xl/s3.xml": sheet}, {"xl/w.xml": related}, SHEETS))
    assert [place for place, _ in found.places if place] == ["S1, row 1", "S3, row 1"]
    assert found.passed_over == {"S2": "is missing"}


def test_cells_with_the_same_name_or_none_are_read() -> None:
    rows = "<row r='1'><c r='A1'><v>11</v></c><c r='A1'><v>12</v></c></row><row r='2'><c r='5'><v>13</v></c></row>"
    assert lines(book(rows)) == ["11 12", "13"]


def test_what_is_shown_to_one_who_fills_in_is_read() -> None:
    def write(made: Any) -> None:
        from openpyxl.worksheet.datavalidation import DataValidation

        made.active["A1"] = "w0"
        checked = DataValidation("list", formula1='"w1,w2"', promptTitle="w3", prompt="w4", errorTitle="w5", error="w6")
        checked.add("B2:B9")
        made.active.add_data_validation(checked)

    found = read(made_by(write))
    assert sorted(found.words) == ["w0", "w1", "w2", "w3", "w4", "w5", "w6"]
