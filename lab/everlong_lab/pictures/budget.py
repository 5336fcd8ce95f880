"""Right answers by how many tokens are put before the question."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from everlong.pictures.canvas import count_in_thousands, legend_beside, literal, open_figure, room_for_legend, save
from everlong_lab.pictures.baselines import label_of


def draw_by_budget(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw a line for each baseline that was asked with several settings (`everlong:groups=1` ...), if there is one."""
    lines: dict[str, list[tuple[float, float, float, float]]] = {}
    for name, baseline in report["baselines"].items():
        score = baseline["score"]
        point = (baseline["cost"]["context"], score["mean"], score["low"], score["high"])
        lines.setdefault(name.partition(":")[0], []).append(point)
    lines = {name: sorted(points) for name, points in lines.items() if len(points) > 1}
    if not lines:
        return []
    legend_width, legend_height = room_for_legend([label_of(name) for name in lines])
    figure, axes = open_figure(
        6.4 + legend_width, max(4.5, legend_height + 0.5), f"{report['settings']['model']}: right answers by budget"
    )
    for number, (name, points) in enumerate(lines.items()):
        tokens, means, lows, highs = (list(column) for column in zip(*points, strict=True))
        axes.fill_between(
            tokens, [100 * low for low in lows], [100 * high for high in highs], color=f"C{number}", alpha=0.12
        )
        label = literal(label_of(name))
        axes.plot(tokens, [100 * mean for mean in means], marker="o", color=f"C{number}", label=label)
    axes.set_xlabel("recalled before the question (tokens, mean of the questions)")
    axes.set_ylabel("right answers (%), shaded: 95 % interval")
    axes.set_xlim(0, 1.05 * max(1.0, *(point[0] for points in lines.values() for point in points)))
    axes.set_ylim(-2, 102)
    count_in_thousands(axes.xaxis)
    legend_beside(axes)
    return save(figure, folder, "budget")
