"""The picture of a walk: from which page it went to which, and what else it saw."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from typing import Any

from everlong.pictures.canvas import count_in_thousands, open_figure, write

_LOADED, _FOUND, _SEEN, _END = "#d94801", "#3182bd", "#bdbdbd", "#54278f"


def draw_walk(walk: Mapping[str, Any], path: pathlib.Path) -> pathlib.Path:
    """Write a PNG or SVG, by the path's suffix. Across: the loads in their order; up: where their pages stand.

    `walk` is a WalkTrace (`Answer.walk`) as `dataclasses.asdict` gives it, or JSON back. An arrow leads from the load
    that named a page to it; what the search itself found has none. Hollow circles are ways that were seen and not
    taken, the paler the less likely. Raises ValueError for a walk that saw nothing.
    """
    from matplotlib.lines import Line2D

    steps, loads = walk["steps"], walk["loads"]
    if not any(way is not None for step in steps for way in step["ways"]):
        raise ValueError("the walk is empty: there was nothing to go to")
    figure, axes = open_figure(9, 5.5, "Where a walk through the memory went")
    for at, step in enumerate(steps):
        taken = step["ways"][step["taken"]]
        highest = max(step["logits"])
        for way, logit in zip(step["ways"], step["logits"], strict=True):
            if way is None or way == taken:
                continue
            # Never invisible: e^-3 of the likeliest is still to be seen.
            axes.plot(
                at, _place(way), "o", color=_SEEN, markerfacecolor="none", alpha=max(0.25, math.exp(logit - highest))
            )
        if taken is None:
            axes.axvline(at, color=_END, linewidth=1.5, linestyle=":")
    for at, load in enumerate(loads):
        origin = load["came_from"]
        axes.plot(at, _place(load), "o", color=_FOUND if origin < 0 else _LOADED, markersize=9)
        if origin >= 0:
            ends = {"xy": (at, _place(load)), "xytext": (origin, _place(loads[origin]))}
            axes.annotate("", arrowprops={"arrowstyle": "->", "color": _LOADED, "shrinkA": 6, "shrinkB": 6}, **ends)
    axes.set_xlim(-0.5, max(len(steps), len(loads)) - 0.5)
    axes.set_xticks(range(len(steps)), [str(at + 1) for at in range(len(steps))])
    axes.set_xlabel("load")
    axes.set_ylabel("place in the stream (tokens)")
    count_in_thousands(axes.yaxis)
    handles = [
        Line2D([], [], color=_FOUND, marker="o", linestyle="", markersize=9, label="found by the search"),
        Line2D([], [], color=_LOADED, marker="o", markersize=9, label="named by a page before"),
        Line2D([], [], color=_SEEN, marker="o", markerfacecolor="none", linestyle="", label="seen, not taken"),
    ]
    if any(step["ways"][step["taken"]] is None for step in steps):
        handles.append(Line2D([], [], color=_END, linestyle=":", label="the walk ends"))
    axes.legend(handles=handles, loc="best")
    return write(figure, path)


def _place(way: Mapping[str, Any]) -> float:
    return (int(way["span"][0]) + int(way["span"][1])) / 2
