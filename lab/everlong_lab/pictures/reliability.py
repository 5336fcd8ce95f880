"""How often a passage was the right one, by how likely it was said to be."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from everlong.pictures.canvas import CONTROL, OURS, RIVAL, legend_beside, open_figure, room_for_legend, save

_MOST_AREA, _LEAST_AREA = 260.0, 12.0  # points^2 of a dot


def draw_reliability(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw a line for each fusion of `eval towers`; the line of all parts stands out, with dots by the number of
    searches.

    On the diagonal what was said came true. It draws nothing where there are no confidences.
    """
    curves = report["confidences"]
    if not curves:
        return []
    labels = {kinds: f"{kinds}: ECE {one['among']['ece']:.3f}" for kinds, one in curves.items()}
    figure, axes = open_figure(
        5.6 + room_for_legend(list(labels.values()))[0],
        4.8,
        f"{report['tokens']:,} tokens: is the right passage among what came back?",
    )
    axes.plot([0, 100], [0, 100], color=CONTROL, linestyle="--", label="as it was said")
    for number, (kinds, one) in enumerate(curves.items()):
        last = number == len(curves) - 1
        bins = one["among"]["bins"]
        said, true = ([100 * each[side] for each in bins] for side in ("said", "true"))
        colour = OURS if last else f"C{number}" if len(curves) > 2 else RIVAL
        axes.plot(said, true, color=colour, linewidth=2.5 if last else 1.0, label=labels[kinds])
        if last:
            most = max(each["n"] for each in bins)
            axes.scatter(said, true, [max(_LEAST_AREA, _MOST_AREA * each["n"] / most) for each in bins], color=colour)
    axes.set_xlabel("confidence (%)")
    axes.set_ylabel("right passage came back (%)")
    axes.set_xlim(-2, 102)
    axes.set_ylim(-2, 102)
    legend_beside(axes)
    return save(figure, folder, "reliability")
