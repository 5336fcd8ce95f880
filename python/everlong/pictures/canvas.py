"""What all pictures share: how a figure is opened and saved, how its texts find room, and the colours."""

from __future__ import annotations

import importlib.util
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

OURS, RIVAL, OWN_RATE, CONTROL = "#d94801", "#6baed6", "#969696", "#bdbdbd"
_RED_TO_GREEN = ("#b2182b", "#ef8a62", "#fddbc7", "#d9f0d3", "#7fbf7b", "#1b7837")

TITLE_SIZE, LABEL_SIZE, SMALL_SIZE = 11.0, 10.0, 9.0  # points
_TITLE_LINE = 1.3 * TITLE_SIZE / 72  # inches
_MARGIN = 0.1  # inches beside a title
_LEGEND_LINE, _LEGEND_HANDLE = 0.2, 0.6  # inches: a line's height, and what stands before its text


def literal(text: str) -> str:
    """Return `text` escaped: matplotlib would read what stands between two dollars as a formula."""
    return text.replace("$", r"\$")


def require_matplotlib() -> None:
    """Raise ValueError where matplotlib is missing, before the work whose picture is to be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError('pictures need the package matplotlib: pip install "matplotlib>=3.9"')


def open_figure(width: float, height: float, title: str) -> tuple[Any, Any]:
    """Return figure and axes of these inches, higher by every further line of the title. It shows nothing and sets no
    backend.

    The title stands over the whole figure, in as many lines as it needs.
    """
    from matplotlib.figure import Figure

    lines = _lines_of(title, width - 2 * _MARGIN)
    figure = Figure(figsize=(width, height + (len(lines) - 1) * _TITLE_LINE), layout="constrained")
    figure.suptitle(literal("\n".join(lines)), fontsize=TITLE_SIZE)
    axes = figure.subplots()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def inches_of(text: str, size: float = LABEL_SIZE) -> float:
    """Return how wide a line of text is in letters of `size` points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)
    return float(width) / 72


def widest(texts: Iterable[str], size: float = LABEL_SIZE) -> float:
    """Return the inches of the widest line of text; 0.0 without one."""
    return max((inches_of(text, size) for text in texts), default=0.0)


def _lines_of(text: str, width: float) -> list[str]:
    """Return a title's lines, none wider than `width` inches: broken between words, or within names
    where it must be.
    """
    lines = []
    for line in text.split("\n"):
        lines.append("")
        # Names have no spaces, but parts. A part that is wider than the whole width is broken letter by letter.
        parts = re.split(r"(?<=[ /_-])", line)
        for part in parts if widest(parts, TITLE_SIZE) <= width else line:
            if lines[-1] and inches_of((lines[-1] + part).rstrip(), TITLE_SIZE) > width:
                lines.append("")
            lines[-1] += part
    return [line.strip() for line in lines]


def count_in_thousands(axis: Any, *, whole: bool = True) -> None:
    """Set an axis' ticks, with a comma at every thousand and none twice: at whole numbers, or with as many digits as
    needed.
    """
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    if whole:
        axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10], integer=True))


def legend_beside(axes: Any) -> None:
    """Draw the legend to the right of the axes, where it hides nothing; `room_for_legend` gives its size."""
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=SMALL_SIZE, frameon=False)


def room_for_legend(labels: Sequence[str]) -> tuple[float, float]:
    """Return width and height in inches."""
    return _LEGEND_HANDLE + widest(labels, SMALL_SIZE), _LEGEND_LINE * len(labels)


def draw_shares(
    figure: Any, axes: Any, percent: npt.NDArray[np.float64], cells: Mapping[tuple[int, int], str], bar_label: str
) -> None:
    """Draw cells from red, nothing right, to green, all right. A cell that was never asked (NaN) stays blank.

    `percent` is [rows, columns]; `cells` says what is written where.
    """
    from matplotlib.colors import LinearSegmentedColormap

    axes.set_facecolor("#f2f2f2")
    colours = LinearSegmentedColormap.from_list("right", _RED_TO_GREEN)
    image = axes.imshow(percent, cmap=colours, vmin=0, vmax=100, aspect="auto")
    for (row, column), text in cells.items():
        dark = percent[row, column] < 12 or percent[row, column] > 88
        colour = "white" if dark else "black"
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=SMALL_SIZE)
    figure.colorbar(image, ax=axes).set_label(bar_label)


def save(figure: Any, folder: pathlib.Path, name: str) -> list[pathlib.Path]:
    """Write `name`.png and `name`.svg in `folder`; return them."""
    return [write(figure, folder / f"{name}.{suffix}") for suffix in ("png", "svg")]


def write(figure: Any, path: pathlib.Path) -> pathlib.Path:
    """Write one file, PNG or SVG by its suffix; its folder is made if it does not exist."""
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    # The same picture gives the same file: without a date, and with names that are not drawn at random.
    with matplotlib.rc_context({"svg.hashsalt": "everlong"}):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path
