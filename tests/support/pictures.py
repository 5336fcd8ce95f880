"""What tests of pictures look at."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from support.drawn_text import faults

MILLION = 1_000_000


def assert_readable(figures: list[Figure]) -> None:
    found = [fault for figure in figures for fault in faults(figure)]
    assert not found, "\n".join(found[:20])


def names_of(paths: list[Path]) -> set[str]:
    return {path.name for path in paths}
