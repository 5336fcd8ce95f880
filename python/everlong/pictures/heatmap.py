"""The depth x length picture of a needle-in-a-haystack report, drawn from its JSON alone."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_RED_TO_GREEN = ("#b2182b", "#ef8a62", "#fddbc7", "#d9f0d3", "#7fbf7b", "#1b7837")


def share_colours() -> Any:
    """From red, nothing right, to green, all of it."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("right", _RED_TO_GREEN)


def draw_heat_map(report: Mapping[str, Any], path: pathlib.Path) -> pathlib.Path:
    """Write a PNG or SVG: what share of the facts at each depth (rows) of each length (columns) was answered right.

    `report` is a NiahReport's dict or its JSON read back. A cell that was never asked stays blank.
    """
    import matplotlib

    from everlong.pictures.canvas import write

    matplotlib.use("Agg")
    from matplotlib import pyplot

    questions = report["questions"]
    depths = int(report["config"]["depths"])
    lengths = sorted({question["length"] for question in questions})
    right = np.zeros((depths, len(lengths)))
    asked = np.zeros((depths, len(lengths)))
    for question in questions:
        cell = question["depth_bin"], lengths.index(question["length"])
        right[cell] += question["right"]
        asked[cell] += 1
    share = np.divide(100.0 * right, asked, out=np.full_like(right, np.nan), where=asked > 0)

    figure, axes = pyplot.subplots(figsize=(3.6 + 1.3 * len(lengths), 1.9 + 0.42 * depths), layout="constrained")
    axes.set_facecolor("#f2f2f2")
    image = axes.imshow(share, cmap=share_colours(), vmin=0, vmax=100, aspect="auto")
    for row in range(depths):
        for column in range(len(lengths)):
            if asked[row, column]:
                text = f"{right[row, column]:.0f} / {asked[row, column]:.0f}"
                dark = share[row, column] < 12 or share[row, column] > 88
                axes.text(column, row, text, ha="center", va="center", color="white" if dark else "black", fontsize=9)
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    axes.set_yticks(
        range(depths), [f"{100 * row / depths:.0f}-{100 * (row + 1) / depths:.0f}" for row in range(depths)]
    )
    axes.set_xlabel("haystack (tokens)")
    axes.set_ylabel("depth of the fact (% of the haystack)")
    model = report["model"] or "model"
    axes.set_title(f"Facts answered right: {model} with everlong\n(right / asked)", fontsize=11)
    bar = figure.colorbar(image, ax=axes)
    bar.set_label("answered right (%)")
    write(figure, path)
    pyplot.close(figure)
    return path
