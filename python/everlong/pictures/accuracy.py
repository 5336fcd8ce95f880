"""Right answers by baseline (bars with intervals), by task, and by length."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from everlong.pictures.canvas import OURS, colour_of, label_of, open_figure, save


def draw_by_baseline(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """A bar for each baseline at the longest length, with its 95 % interval."""
    length = str(report["lengths"][-1])
    scores = {name: baseline["by_length"][length] for name, baseline in report["baselines"].items()}
    names = sorted(scores, key=lambda name: scores[name]["mean"])
    pyplot, figure, axes = open_figure(7.5, 1.5 + 0.36 * len(names))
    means = np.array([100 * scores[name]["mean"] for name in names])
    spread = [
        means - [100 * scores[name]["low"] for name in names],
        np.array([100 * scores[name]["high"] for name in names]) - means,
    ]
    axes.barh(range(len(names)), means, color=[colour_of(name) for name in names], height=0.7)
    axes.errorbar(means, range(len(names)), xerr=np.maximum(spread, 0), fmt="none", ecolor="#404040", capsize=3)
    for row, name in enumerate(names):
        axes.text(100 * scores[name]["high"] + 1.5, row, f"{means[row]:.0f}", va="center", fontsize=9)
    axes.set_yticks(range(len(names)), [label_of(name) for name in names])
    axes.set_xlim(0, 108)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("right answers (%), bars: 95 % interval")
    asked = scores[names[0]]["n"]
    axes.set_title(
        f"{report['settings']['model']}: {int(length):,} tokens, {len(report['tasks'])} tasks, {asked} questions",
        fontsize=11,
    )
    return save(pyplot, figure, folder, "accuracy")


def draw_by_task(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Tasks (rows) by baselines (columns) at the longest length."""
    from matplotlib.colors import LinearSegmentedColormap

    length = str(report["lengths"][-1])
    tasks, names = list(report["tasks"]), list(report["baselines"])
    means = np.array([[100 * report["baselines"][n]["by_task"][t][length]["mean"] for n in names] for t in tasks])
    pyplot, figure, axes = open_figure(3.2 + 0.72 * len(names), 2.6 + 0.3 * len(tasks))
    colours = LinearSegmentedColormap.from_list("right", ("#ffffff", "#fdd0a2", OURS))
    image = axes.imshow(means, cmap=colours, vmin=0, vmax=100, aspect="auto")
    for row in range(len(tasks)):
        for column in range(len(names)):
            shade = "white" if means[row, column] > 75 else "black"
            axes.text(column, row, f"{means[row, column]:.0f}", ha="center", va="center", color=shade, fontsize=9)
    axes.set_xticks(range(len(names)), [label_of(name) for name in names], rotation=35, ha="right")
    axes.set_yticks(range(len(tasks)), tasks)
    axes.set_ylabel("task")
    axes.tick_params(length=0)
    axes.set_title(f"{report['settings']['model']}: {int(length):,} tokens", fontsize=11)
    bar = figure.colorbar(image, ax=axes)
    bar.set_label("right answers (%)")
    return save(pyplot, figure, folder, "tasks")


def draw_by_length(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """A line for each baseline as it is by default over the lengths; nothing where no line would be."""
    lengths = report["lengths"]
    if len(lengths) < 2:
        return []
    last = {
        name: baseline["by_length"][str(lengths[-1])]["mean"]
        for name, baseline in report["baselines"].items()
        if ":" not in name
    }
    if not last:
        return []
    pyplot, figure, axes = open_figure(8.5, 4.5)
    markers = "osD^vPX*<>ph"
    for number, name in enumerate(sorted(last, key=lambda name: -last[name])):
        points = [100 * report["baselines"][name]["by_length"][str(length)]["mean"] for length in lengths]
        strong = name == "everlong"
        axes.plot(
            lengths,
            points,
            marker=markers[number % len(markers)],
            color=colour_of(name) if name in ("everlong", "gold", "random") else f"C{number % 10}",
            linewidth=2.5 if strong else 1.2,
            linestyle="--" if name in ("gold", "random") else "-",
            label=label_of(name),
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel("text read (tokens)")
    axes.set_ylabel("right answers (%)")
    axes.set_ylim(-2, 102)
    axes.set_title(f"{report['settings']['model']}: right answers by length", fontsize=11)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False)
    return save(pyplot, figure, folder, "lengths")
