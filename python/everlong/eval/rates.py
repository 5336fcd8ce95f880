"""A table of rates with their intervals, a row for each way of deciding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

Rates = Mapping[str, float]  # by column, and where it has an interval by "column, low" and "column, high"


def print_rates(title: str, by: str, columns: Sequence[str], rows: Mapping[str, Rates], console: Console) -> None:
    """`by` is the heading of what the rows are called."""
    table = Table(title=title)
    table.add_column(by)
    for column in columns:
        table.add_column(column, justify="right")
    for name, found in rows.items():
        table.add_row(name, *(_cell(found, column) for column in columns))
    console.print(table)


def _cell(found: Rates, column: str) -> str:
    interval = f" [{found[column + ', low']:.2f}, {found[column + ', high']:.2f}]" if f"{column}, low" in found else ""
    return f"{found[column]:.2f}{interval}"
