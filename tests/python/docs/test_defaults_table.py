"""The table of defaults by a model's window says what the function gives."""

from __future__ import annotations

import dataclasses

import pytest

from everlong import MemoryConfig
from support import REPOSITORY

PAGE = REPOSITORY / "docs" / "guides" / "policies.md"
# Windows of a row: what is said of one holds for larger ones in the last row.
WINDOWS = {"512": [512], "1,024": [1024], "2,048": [2048], "4,096 and more": [4096, 8192, 32768, 131072]}


def rows() -> tuple[list[str], dict[str, list[int]]]:
    """The names of the settings, and their values by window."""
    _, _, table = PAGE.read_text(encoding="utf-8").partition("| window |")
    head, _, *lines = table.partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    names = [name.strip(" `") for name in head.strip("|").split("|")]
    return names, {first: [int(cell.replace(",", "")) for cell in rest] for first, *rest in cells}


@pytest.mark.parametrize("row", WINDOWS)
def test_a_row_says_what_a_model_of_that_window_gets(row: str) -> None:
    if not PAGE.exists():
        pytest.skip("no docs beside these tests")
    names, told = rows()
    assert told.keys() == WINDOWS.keys()
    for window in WINDOWS[row]:
        config = MemoryConfig.fitting(window)
        groups = (config.frame, config.archive, config.search)
        values = {name: value for group in groups for name, value in dataclasses.asdict(group).items()}
        assert told[row] == [values[name] for name in names]
