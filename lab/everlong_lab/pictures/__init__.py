"""Pictures of the lab's reports, drawn from their JSON alone: PNG and SVG."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, Final

from everlong_lab.pictures.accuracy import draw_by_baseline, draw_by_length, draw_by_task
from everlong_lab.pictures.budget import draw_by_budget
from everlong_lab.pictures.depth import draw_by_depth
from everlong_lab.pictures.heatmap import draw_heat_map
from everlong_lab.pictures.kept import draw_kept
from everlong_lab.pictures.position import draw_by_position
from everlong_lab.pictures.reliability import draw_reliability

MAY_IMPORT: Final = ()


def draw(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path] | None:
    """Draw the pictures of a report of the lab; None for anything else. `everlong.pictures` calls it."""
    if report.get("kind") == "suite":
        draws = (draw_by_baseline, draw_by_task, draw_by_length, draw_by_depth, draw_by_budget)
        return [path for one in draws for path in one(report, folder)]
    if "by_kind" in report:
        return [draw_heat_map(report, folder / f"heatmap.{suffix}") for suffix in ("png", "svg")]
    if "by_position" in report:
        return draw_by_position(report, folder)
    if "trimming" in report:
        return draw_kept(report, folder)
    if "confidences" in report:
        return draw_reliability(report, folder)
    return None
