"""Everything that is written in a picture can be read, whatever the report: drawn, and measured where it stands."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from everlong.pictures import draw_report
from support import REPOSITORY
from support.drawn_text import faults, overlap, saved_figures
from support.pictures import MILLION, assert_readable

RESULTS = sorted((REPOSITORY / "docs" / "results").glob("*.json"))


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_every_text_of_a_picture_of_what_was_measured_can_be_read(file: Path, tmp_path: Path) -> None:
    with saved_figures() as figures:
        draw_report(json.loads(file.read_text(encoding="utf-8")), tmp_path)
    assert figures
    assert_readable(figures)


@pytest.mark.parametrize("sizes", [[10_000], [10_000, 100_000, MILLION, 16 * MILLION]])
def test_every_text_of_the_indexes_picture_can_be_read(
    sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    archives = [
        {"tokens": size}
        | {name: size * 1e-8 * n for n, name in enumerate(("heads", "two levels", "read", "lexical"), 1)}
        for size in sizes
    ]
    with saved_figures() as figures:
        importlib.import_module("index").plot_archives({"archives": archives, "threads": 2}, tmp_path / "index.png")
    assert_readable(figures)


def labelled(title: str = "") -> tuple[Figure, Any]:
    """A figure in which everything can be read."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([1, 2], [3, 4])
    axes.set(xlabel="time (s)", ylabel="perplexity", title=title)
    return figure, axes


def no_label(axes: Any) -> None:
    axes.set_xlabel("")


def no_unit(axes: Any) -> None:
    axes.set_xlabel("time")


def out_of_the_figure(axes: Any) -> None:
    axes.set_title("a long title " * 20)


def over_another(axes: Any) -> None:
    axes.text(1.5, 3.5, "here is one")
    axes.text(1.5, 3.5, "another")


def too_near(axes: Any) -> None:
    axes.set_xticks([1, 1.15], ["1,000,000", "1,048,576"])


def over_a_turned_one(axes: Any) -> None:
    axes.text(1.5, 3.5, "turned, and rather long", rotation=45, ha="center", va="center")
    axes.text(1.5, 3.5, "flat", ha="center", va="center")


def the_same_twice(axes: Any) -> None:
    axes.set_xticks([1, 2], ["0", "0"])


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (no_label, "the x axis of '' has no label"),
        (no_unit, "the x axis of '' names no unit: 'time'"),
        (out_of_the_figure, "is not all inside the figure"),
        (over_another, "'here is one' overlaps 'another'"),
        (too_near, "'1,000,000' overlaps '1,048,576'"),
        (over_a_turned_one, "'turned, and rather long' overlaps 'flat'"),
        (the_same_twice, "has the same tick label twice"),
    ],
)
def test_what_cannot_be_read_is_found(spoil: Callable[[Any], None], fault: str) -> None:
    figure, axes = labelled()
    assert faults(figure) == []
    spoil(axes)
    assert any(fault in one for one in faults(figure))


def test_turned_texts_side_by_side_do_not_overlap() -> None:
    """The upright rectangles around them do."""
    figure, axes = labelled()
    for x in (1.3, 1.4, 1.5):
        axes.text(x, 3.5, "turned, and rather long", rotation=60, ha="center", va="center")
    assert faults(figure) == []
    square = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    diamond = np.array([[1.0, 0.0], [2.0, 1.0], [1.0, 2.0], [0.0, 1.0]])
    assert overlap(square, diamond)
    assert not overlap(square, diamond + 0.5)
    assert not overlap(square, square + np.array([1.0, 0.0]))
