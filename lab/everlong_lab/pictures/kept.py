"""What is kept of a text: its tokens in order, with the kept ones marked, one panel a method."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from everlong.pictures.canvas import OURS, SMALL_SIZE, literal, open_figure, save

_COLUMNS = 74  # characters in a line
_SIZE = 7.0  # points
_ADVANCE, _LINE = 0.602 * _SIZE / 72, 1.5 * _SIZE / 72  # inches of a character of the monospaced font, and of a line
_SHOWN = ("Trimmer", "KVzip")


def draw_kept(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw a picture for each text of a report of `eval trimmer`."""
    return [path for text in report["kept"] for path in _draw_text(text, folder)]


def _draw_text(text: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    from matplotlib.patches import Rectangle

    words = [str(word) for word in text["words"]]
    places = laid_out(words, _COLUMNS)
    lines = 1 + max(line for line, _ in places)
    shown = [name for name in _SHOWN if name in text["kept"]]
    width, height = len(shown) * (_COLUMNS + 3) * _ADVANCE, (lines + 2) * _LINE
    title = f"What is kept of {len(words)} tokens ({text['ground']}): {text['budget']} of them"
    figure, axes = open_figure(width + 0.3, height + 0.5, title)
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    for panel, name in enumerate(shown):
        left = panel * (_COLUMNS + 3) * _ADVANCE
        axes.text(left, _LINE, name, fontsize=SMALL_SIZE, fontweight="bold")
        kept = set(text["kept"][name])
        for at, (word, (line, column)) in enumerate(zip(words, places, strict=True)):
            plain = _in_line(word)
            x, y = left + column * _ADVANCE, (line + 2) * _LINE
            if at in kept:
                axes.add_patch(
                    Rectangle((x, y - 0.8 * _LINE), len(plain) * _ADVANCE, _LINE, color=OURS, alpha=0.3, linewidth=0)
                )
            axes.text(
                x, y, literal(plain), fontsize=_SIZE, family="monospace", color="black" if at in kept else "#8c8c8c"
            )
    return save(figure, folder, f"kept-{text['ground']}")


def laid_out(words: Sequence[str], columns: int) -> list[tuple[int, int]]:
    """Return line and column of each token: a line ends where the text's does, or before a token without room."""
    line = column = 0
    places = []
    for word in words:
        plain = _in_line(word)
        if column > 0 and column + len(plain) > columns:
            line, column = line + 1, 0
        places.append((line, column))
        column += len(plain)
        if "\n" in word:
            line, column = line + 1, 0
    return places


def _in_line(word: str) -> str:
    """Return a token as it stands in a line: an end of line is a mark."""
    return "\u00b6" if word.strip(" \r\n") == "" and "\n" in word else word.replace("\n", " ").replace("\r", " ")
