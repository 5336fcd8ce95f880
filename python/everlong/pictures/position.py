"""Perplexity of what follows, by how far it stands behind the place where scoring began."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from everlong.eval.ppl import BIN_TOKENS
from everlong.pictures.canvas import open_figure, save

_LABELS = {
    "window": "window alone",
    "random": "window and random pages",
    "recent": "window and the newest blocks",
    "prompt": "window and what the newest tokens find",
    "full": "full attention, own window",
}


def draw_by_position(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """A line for each policy: exp of the mean loss of every BIN_TOKENS tokens behind a place, over all places."""
    curves = report["by_position"]
    pyplot, figure, axes = open_figure(8.5, 4.5)
    for number, (policy, label) in enumerate(_LABELS.items()):
        means = [math.exp(nll) for nll in curves[policy]]
        middles = (np.arange(len(means)) + 0.5) * BIN_TOKENS
        style = "--" if policy in ("random", "full") else "-"
        axes.plot(middles, means, marker="o", markersize=4, color=f"C{number}", linestyle=style, label=label)
    axes.set_xlabel("distance from the first scored token (tokens)")
    axes.set_ylabel("perplexity")
    axes.set_xlim(left=0)
    axes.set_title(
        f"{report['model']}: {len(report['places'])} places after {report['config']['prefix_tokens']:,}+ tokens",
        fontsize=11,
    )
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False)
    return save(pyplot, figure, folder, "perplexity")
