"""What an evaluation reports: tables, with a row for each method and a column for each figure, and their printer."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

Rates = Mapping[str, float]  # by column, and where it has an interval by "column, low" and "column, high"


@dataclasses.dataclass(frozen=True)
class Table:
    """A table with its cells as they are shown: figures with their errors."""

    title: str  # "" without one
    columns: Sequence[str]  # the first one says what rows are
    rows: Sequence[Sequence[str]]


class Report:
    """The result of a measurement. Its dataclass is its JSON."""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload,no-any-return]  # each report is a dataclass

    def tables(self) -> Iterator[Table | str]:
        """Yield tables in their order, with lines between them."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Reports(Report):
    """Several reports by their names, which is their JSON."""

    named: dict[str, Report]

    def to_dict(self) -> dict[str, Any]:
        return {name: report.to_dict() for name, report in self.named.items()}

    def tables(self) -> Iterator[Table | str]:
        for report in self.named.values():
            yield from report.tables()


def print_report(report: Report, console: Console) -> None:
    for table in report.tables():
        if isinstance(table, str):
            console.print(table, highlight=False)
            continue
        drawn = RichTable(title=table.title)
        for number, column in enumerate(table.columns):
            drawn.add_column(column, justify="right" if number else "left")
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)


def store_report(report: Mapping[str, Any], file: pathlib.Path | None) -> None:
    """Write it as JSON, where a file is named."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(report) + "\n", encoding="utf-8")


def rates_table(title: str, by: str, columns: Sequence[str], rows: Mapping[str, Rates]) -> Table:
    """Return a table of rates with their intervals, a row for each way of deciding; `by` says what the rows are."""
    cells = [[name, *(_rate(found, column) for column in columns)] for name, found in rows.items()]
    return Table(title, (by, *columns), cells)


def with_error(found: Mapping[str, Any], measure: str, *, times: float = 1.0, sign: str = "") -> str:
    """Return a figure and its standard error (under "... stderr"), multiplied by `times`."""
    return f"{found[measure]:{sign}.3f} ±{times * found[f'{measure} stderr']:.3f}"


def _rate(found: Rates, column: str) -> str:
    interval = f" [{found[column + ', low']:.2f}, {found[column + ', high']:.2f}]" if f"{column}, low" in found else ""
    return f"{found[column]:.2f}{interval}"
