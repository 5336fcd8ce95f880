"""Right answers by baseline (bars with intervals), by task, and by length."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from everlong.pictures.canvas import (
    LABEL_SIZE,
    OURS,
    SMALL_SIZE,
    inches_of,
    legend_beside,
    literal,
    open_figure,
    room_for_legend,
    save,
    widest,
)
from everlong_lab.pictures.baselines import colour_of, label_of

_TURNED = 35.0  # degrees, labels of columns
_COLUMN, _ROW = 0.72, 0.3  # inches
_AXES_WIDTH = 5.2  # inches, by length


def draw_by_baseline(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw a bar for each baseline at the longest length, with its 95 % interval."""
    length = str(report["lengths"][-1])
    scores = {name: baseline["by_length"][length] for name, baseline in report["baselines"].items()}
    names = sorted(scores, key=lambda name: scores[name]["mean"])
    labels = [label_of(name) for name in names]
    tasks, asked = len(report["tasks"]), scores[names[0]]["n"]
    figure, axes = open_figure(
        5.8 + widest(labels),
        1.5 + 0.36 * len(names),
        f"{report['settings']['model']}: {int(length):,} tokens, {tasks:,} task{'s' * (tasks != 1)}, "
        f"{asked:,} question{'s' * (asked != 1)}",
    )
    means = np.array([100 * scores[name]["mean"] for name in names])
    spread = [
        means - [100 * scores[name]["low"] for name in names],
        np.array([100 * scores[name]["high"] for name in names]) - means,
    ]
    axes.barh(range(len(names)), means, color=[colour_of(name) for name in names], height=0.7)
    axes.errorbar(means, range(len(names)), xerr=np.maximum(spread, 0), fmt="none", ecolor="#404040", capsize=3)
    for row, name in enumerate(names):
        axes.text(100 * scores[name]["high"] + 1.5, row, f"{means[row]:.0f}", va="center", fontsize=SMALL_SIZE)
    axes.set_yticks(range(len(names)), map(literal, labels))
    axes.set_ylabel("baseline")
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlim(0, 108)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("right answers (%), bars: 95 % interval")
    return save(figure, folder, "accuracy")


def draw_by_task(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw tasks (rows) by baselines (columns) at the longest length."""
    from matplotlib.colors import LinearSegmentedColormap

    length = str(report["lengths"][-1])
    tasks, names = list(report["tasks"]), list(report["baselines"])
    means = np.array([[100 * report["baselines"][n]["by_task"][t][length]["mean"] for n in names] for t in tasks])
    labels = [label_of(name) for name in names]
    # A turned label ends below its column and reaches down to the left.
    turned = math.radians(_TURNED)
    reaches = [inches_of(label) * math.cos(turned) - (n + 0.5) * _COLUMN for n, label in enumerate(labels)]
    figure, axes = open_figure(
        max(*reaches, widest(tasks)) + 0.6 + _COLUMN * max(2, len(names)) + 1.3,
        0.8 + _ROW * max(5, len(tasks)) + widest(labels) * math.sin(turned) + 0.6,
        f"{report['settings']['model']}: {int(length):,} tokens",
    )
    colours = LinearSegmentedColormap.from_list("right", ("#ffffff", "#fdd0a2", OURS))
    image = axes.imshow(means, cmap=colours, vmin=0, vmax=100, aspect="auto")
    for row in range(len(tasks)):
        for column in range(len(names)):
            shade = "white" if means[row, column] > 75 else "black"
            share = f"{means[row, column]:.0f}"
            axes.text(column, row, share, ha="center", va="center", color=shade, fontsize=SMALL_SIZE)
    axes.set_xticks(
        range(len(names)), map(literal, labels), rotation=_TURNED, ha="right", va="center", rotation_mode="anchor"
    )
    axes.set_yticks(range(len(tasks)), map(literal, tasks))
    axes.set_xlabel("baseline")
    axes.set_ylabel("task")
    axes.tick_params(length=0)
    axes.tick_params(axis="x", pad=8)
    figure.colorbar(image, ax=axes).set_label("right answers (%)")
    return save(figure, folder, "tasks")


def draw_by_length(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw a line over the lengths for each baseline with default settings; nothing for fewer than two lengths."""
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
    legend_width, legend_height = room_for_legend([label_of(name) for name in last])
    figure, axes = open_figure(
        _AXES_WIDTH + 1.0 + legend_width,
        max(4.5, legend_height + 0.5),
        f"{report['settings']['model']}: right answers by length",
    )
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
            label=literal(label_of(name)),
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, _labels_with_room(lengths))
    axes.minorticks_off()
    axes.set_xlabel("text read (tokens)")
    axes.set_ylabel("right answers (%)")
    axes.set_ylim(-2, 102)
    legend_beside(axes)
    return save(figure, folder, "lengths")


def _labels_with_room(lengths: Sequence[int]) -> list[str]:
    """Return a label for each of the ascending `lengths`, empty where it would run into the next label."""
    an_octave = 0.9 * _AXES_WIDTH / math.log2(lengths[-1] / lengths[0])
    labels: list[str] = []
    left_of_all = math.inf  # in inches: all labels that are set already begin at or after this
    for length in reversed(lengths):
        label, place = f"{length:,}", math.log2(length) * an_octave
        half = inches_of(label, LABEL_SIZE) / 2 + 0.05
        labels.append(label if place + half <= left_of_all else "")
        if labels[-1]:
            left_of_all = place - half
    return labels[::-1]
