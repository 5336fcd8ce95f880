"""The depth x length picture of a needle-in-a-haystack report, drawn from its JSON alone."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from everlong.pictures.canvas import SMALL_SIZE, draw_shares, inches_of, open_figure, widest, write


def draw_heat_map(report: Mapping[str, Any], path: pathlib.Path) -> pathlib.Path:
    """Write a PNG or SVG: the share of facts answered right at each depth (rows) of each length (columns).

    `report` is a NiahReport's dict or its JSON read back. A cell that was never asked stays blank.
    """
    questions = report["questions"]
    depths = int(report["config"]["depths"])
    lengths = sorted({question["length"] for question in questions})
    right = np.zeros((depths, len(lengths)))
    asked = np.zeros((depths, len(lengths)))
    for question in questions:
        cell = question["depth_bin"], lengths.index(question["length"])
        right[cell] += question["right"]
        asked[cell] += 1
    percent = np.divide(100.0 * right, asked, out=np.full_like(right, np.nan), where=asked > 0)
    cells = {
        (row, column): f"{right[row, column]:,.0f} / {asked[row, column]:,.0f}"
        for row, column in zip(*np.nonzero(asked), strict=True)
    }
    column, depth_label = max(1.1, widest(cells.values(), SMALL_SIZE)) + 0.2, "depth of the fact (% of the haystack)"
    figure, axes = open_figure(
        3.6 + column * len(lengths),
        max(1.9 + 0.42 * depths, 1.2 + inches_of(depth_label)),
        f"Facts answered right: {report['model'] or 'model'} with everlong\n(right / asked)",
    )
    draw_shares(figure, axes, percent, cells, "answered right (%)")
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    axes.set_yticks(
        range(depths), [f"{100 * row / depths:.0f}-{100 * (row + 1) / depths:.0f}" for row in range(depths)]
    )
    axes.set_xlabel("haystack (tokens)")
    axes.set_ylabel(depth_label)
    return write(figure, path)
