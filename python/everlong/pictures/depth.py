"""What share is answered right by where the answer stands in the text, and by the text's length."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from everlong.pictures.canvas import label_of, open_figure, save
from everlong.pictures.heatmap import share_colours

_BINS = 5


def draw_by_depth(report: Mapping[str, Any], folder: pathlib.Path, baseline: str = "everlong") -> list[pathlib.Path]:
    """Depth (rows) by length (columns) of one baseline; nothing where it was not asked."""
    if baseline not in report["baselines"]:
        return []
    lengths = report["lengths"]
    scores: dict[tuple[int, int], list[float]] = {}
    for question in report["questions"]:
        cell = min(int(question["depth"] * _BINS), _BINS - 1), lengths.index(question["length"])
        scores.setdefault(cell, []).append(100 * question["replies"][baseline]["score"])
    share = np.full((_BINS, len(lengths)), np.nan)
    for cell, values in scores.items():
        share[cell] = np.mean(values)
    pyplot, figure, axes = open_figure(3.8 + 1.3 * len(lengths), 4.2)
    axes.set_facecolor("#f2f2f2")
    image = axes.imshow(share, cmap=share_colours(), vmin=0, vmax=100, aspect="auto")
    for (row, column), values in scores.items():
        dark = share[row, column] < 12 or share[row, column] > 88
        text = f"{share[row, column]:.0f} %\nof {len(values)}"
        axes.text(column, row, text, ha="center", va="center", color="white" if dark else "black", fontsize=9)
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    axes.set_yticks(range(_BINS), [f"{100 * row // _BINS}-{100 * (row + 1) // _BINS}" for row in range(_BINS)])
    axes.set_xlabel("text read (tokens)")
    axes.set_ylabel("depth of the answer (% of the text)")
    axes.set_title(f"{label_of(baseline)}:\nright answers by depth", fontsize=11)
    bar = figure.colorbar(image, ax=axes)
    bar.set_label("right answers (%)")
    return save(pyplot, figure, folder, "depth")
