"""Every text of a figure, as it is drawn and where, and what makes it hard to read."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

DPI = 150.0  # as fine as in the saved files, because texts are laid out in whole pixels
LETTERS_APART = 0.3  # of the font's size; closer texts on one line read as one word
NUMBER = re.compile(r"[-−+]?[\d.,]+( ?[-–] ?[\d.,]+)?|\$.*\$")
UNITLESS = {"perplexity"}


@dataclasses.dataclass(frozen=True)
class DrawnText:
    """A text and the corners [4, 2] of its rectangle, turned as the text is, in pixels from below left."""

    text: Text
    corners: npt.NDArray[np.float64]

    def __str__(self) -> str:
        return repr(self.text.get_text())


@contextlib.contextmanager
def saved_figures() -> Iterator[list[Figure]]:
    """Collect the figures that are saved inside, each once. No file is written."""
    figures: list[Figure] = []

    def keep(figure: Figure, *_: Any, **__: Any) -> None:
        if not any(figure is kept for kept in figures):
            figures.append(figure)

    with mock.patch.object(Figure, "savefig", keep):
        yield figures


def drawn_texts(figure: Figure) -> list[DrawnText]:
    """Return the texts that are drawn: no tick outside its axis, nothing invisible, nothing empty."""
    drawn: list[Text] = []
    draw = Text.draw

    def keep(text: Text, *arguments: Any, **options: Any) -> None:
        if text.get_visible() and text.get_text().strip():
            drawn.append(text)
        draw(text, *arguments, **options)

    canvas = FigureCanvasAgg(figure)
    figure.set_dpi(DPI)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a layout without room warns
        canvas.draw()  # the first drawing decides where texts stand
        with mock.patch.object(Text, "draw", keep):
            canvas.draw()
    return [DrawnText(text, _corners(text, canvas.get_renderer())) for text in drawn]


def _corners(text: Text, renderer: Any) -> npt.NDArray[np.float64]:
    around = text.get_window_extent(renderer)
    angle = text.get_rotation()
    text.set_rotation(0)
    upright = text.get_window_extent(renderer)
    text.set_rotation(angle)
    # A turned rectangle and the upright one around it have the same middle.
    middle = np.array([around.x0 + around.x1, around.y0 + around.y1]) / 2
    half = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * [upright.width / 2, upright.height / 2]
    along = np.deg2rad(angle)
    turned: npt.NDArray[np.float64] = half @ np.array([[np.cos(along), np.sin(along)], [-np.sin(along), np.cos(along)]])
    return middle + turned


def overlap(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> bool:
    """Return whether two convex polygons [corners, 2] share some of their inside, which no line along an edge parts."""
    for polygon in (one, other):
        for edge in np.roll(polygon, -1, axis=0) - polygon:
            across = np.array([-edge[1], edge[0]])
            if (one @ across).max() <= (other @ across).min() or (other @ across).max() <= (one @ across).min():
                return False
    return True


def overlapping(polygons: Sequence[npt.NDArray[np.float64]]) -> Iterator[tuple[int, int]]:
    """Yield the pairs (i, j) of polygons [corners, 2] that overlap."""
    low = np.array([polygon.min(axis=0) for polygon in polygons])
    high = np.array([polygon.max(axis=0) for polygon in polygons])
    # Only few of very many pairs are near each other.
    near = ((low[:, None] < high[None]) & (low[None] < high[:, None])).all(axis=-1)
    for i, j in np.argwhere(np.triu(near, k=1)).tolist():
        if overlap(polygons[i], polygons[j]):
            yield i, j


def _with_a_gap(drawn: DrawnText) -> npt.NDArray[np.float64]:
    """Return the corners, moved out by half a gap between words at either end of the line."""
    first, second = drawn.corners[:2]
    along = (second - first) / np.linalg.norm(second - first)
    gap = LETTERS_APART / 2 * float(drawn.text.get_fontsize()) * DPI / 72
    corners: npt.NDArray[np.float64] = drawn.corners + np.array([-1, 1, 1, -1])[:, None] * along * gap
    return corners


def faults(figure: Figure) -> list[str]:
    """Return what is wrong with the texts of a figure, a line each, and nothing if everything can be read.

    Texts must not overlap, must be a gap apart, and must be inside the figure. An axis with ticks needs a label, and
    no tick label twice. The label of an axis of numbers names a unit in parentheses.
    """
    drawn = drawn_texts(figure)
    found = []
    width, height = figure.bbox.width, figure.bbox.height
    for one in drawn:
        low, high = one.corners.min(axis=0), one.corners.max(axis=0)
        if (low < 0).any() or high[0] > width or high[1] > height:
            found.append(f"{one} is not all inside the figure")
    found += [f"{drawn[i]} overlaps {drawn[j]}" for i, j in overlapping([_with_a_gap(one) for one in drawn])]
    shown = {id(one.text) for one in drawn}
    for axes in figure.axes:
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            found += [f"the {name} axis of {axes.get_title()!r} {fault}" for fault in _faults_of_axis(axis, shown)]
    return found


def _faults_of_axis(axis: Axis, shown: set[int]) -> Iterator[str]:
    ticks = [tick for tick in axis.get_ticklabels() if id(tick) in shown]
    label = axis.get_label_text()
    numbers = [tick for tick in ticks if NUMBER.fullmatch(tick.get_text())]
    if ticks and id(axis.label) not in shown:
        yield "has no label"
    elif numbers and len(numbers) == len(ticks) and not re.search(r"\(.+\)", label) and label not in UNITLESS:
        yield f"names no unit: {label!r}"
    if len({tick.get_text() for tick in ticks}) < len(ticks):
        yield "has the same tick label twice"
