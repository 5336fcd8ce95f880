"""The share of right answers by where the answer stands in the text, and by the text's length."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from everlong.pictures.canvas import draw_shares, open_figure, save
from everlong_lab.pictures.baselines import label_of

_BINS = 5


def draw_by_depth(report: Mapping[str, Any], folder: pathlib.Path, baseline: str = "everlong") -> list[pathlib.Path]:
    """Draw depth (rows) by length (columns) of one baseline; nothing where it was not asked."""
    if baseline not in report["baselines"]:
        return []
    lengths = report["lengths"]
    scores: dict[tuple[int, int], list[float]] = {}
    for question in report["questions"]:
        cell = min(int(question["depth"] * _BINS), _BINS - 1), lengths.index(question["length"])
        scores.setdefault(cell, []).append(100 * question["replies"][baseline]["score"])
    percent = np.full((_BINS, len(lengths)), np.nan)
    for cell, values in scores.items():
        percent[cell] = np.mean(values)
    figure, axes = open_figure(
        3.8 + 1.3 * len(lengths), 4.2, f"{report['settings']['model']}, {label_of(baseline)}: right answers by depth"
    )
    cells = {cell: f"{percent[cell]:.0f} %\nof {len(values):,}" for cell, values in scores.items()}
    draw_shares(figure, axes, percent, cells, "right answers (%)")
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    axes.set_yticks(range(_BINS), [f"{100 * row // _BINS}-{100 * (row + 1) // _BINS}" for row in range(_BINS)])
    axes.set_xlabel("text read (tokens)")
    axes.set_ylabel("depth of the answer (% of the text)")
    return save(figure, folder, "depth")
