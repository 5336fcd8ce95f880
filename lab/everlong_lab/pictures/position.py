"""Perplexity of what follows, by its distance from the place where scoring began."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from everlong.pictures.canvas import count_in_thousands, legend_beside, open_figure, room_for_legend, save

BIN_TOKENS = 32  # tokens for which a report gives one mean loss

_LABELS = {
    "window": "window alone",
    "random": "window and random pages",
    "recent": "window and the newest blocks",
    "prompt": "window and what the newest tokens find",
    "full": "full attention, own window",
}
_MOST_MARKERS = 60  # more markers look like a thick line


def draw_by_position(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw a line for each policy: exp of the mean loss of every BIN_TOKENS tokens behind a place, over all places.

    It draws nothing where no place has that many tokens.
    """
    curves, places = report["by_position"], len(report["places"])
    bins = len(curves["window"])
    if not bins:
        return []
    figure, axes = open_figure(
        6.2 + room_for_legend(list(_LABELS.values()))[0],
        4.5,
        f"{report['model']}: {places:,} place{'s' * (places != 1)} after {report['config']['prefix_tokens']:,}+ tokens",
    )
    middles = (np.arange(bins) + 0.5) * BIN_TOKENS
    for number, (policy, label) in enumerate(_LABELS.items()):
        axes.plot(
            middles,
            [math.exp(nll) for nll in curves[policy]],
            marker="o" if bins <= _MOST_MARKERS else "",
            markersize=4,
            color=f"C{number}",
            linestyle="--" if policy in ("random", "full") else "-",
            label=label,
        )
    axes.set_xlabel("distance from the first scored token (tokens)")
    axes.set_ylabel("perplexity")
    axes.set_xlim(0, bins * BIN_TOKENS)
    count_in_thousands(axes.xaxis)
    count_in_thousands(axes.yaxis, whole=False)
    legend_beside(axes)
    return save(figure, folder, "perplexity")
