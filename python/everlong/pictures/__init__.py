"""Pictures of every report and of a trace, drawn from their JSON alone: PNG and SVG."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, Final

from everlong.pictures.accuracy import draw_by_baseline, draw_by_length, draw_by_task
from everlong.pictures.budget import draw_by_budget
from everlong.pictures.canvas import require_matplotlib
from everlong.pictures.codecs import draw_codecs
from everlong.pictures.depth import draw_by_depth
from everlong.pictures.graph import draw_graph
from everlong.pictures.heatmap import draw_heat_map
from everlong.pictures.kept import draw_kept
from everlong.pictures.position import draw_by_position
from everlong.pictures.reliability import draw_reliability
from everlong.pictures.timeline import draw_timeline
from everlong.pictures.walk import draw_walk

MAY_IMPORT: Final = ()

__all__ = ["draw_report", "require_matplotlib"]


def draw_report(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw every picture that a report has, into `folder`; return the files.

    `report` is one of these, as JSON gives it back:

    - the report of a suite, of `eval niah` or of `eval ppl`;
    - a report that `eval towers --keep` or `eval trimmer --keep` kept;
    - a trace;
    - what `doctor --codec` measured;
    - a memory's graph (`everlong graph --json`);
    - an answer whose search walked (`everlong ask --json`).

    Raises ValueError for anything else.
    """
    try:
        return _draw(report if isinstance(report, Mapping) else {}, folder)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"no whole report: {error!r} is not as it should be") from error


def _draw(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    if report.get("kind") == "suite":
        draws = (draw_by_baseline, draw_by_task, draw_by_length, draw_by_depth, draw_by_budget)
        return [path for draw in draws for path in draw(report, folder)]
    if "by_kind" in report:
        return [draw_heat_map(report, folder / f"heatmap.{suffix}") for suffix in ("png", "svg")]
    if "by_position" in report:
        return draw_by_position(report, folder)
    if "trimming" in report:
        return draw_kept(report, folder)
    if "confidences" in report:
        return draw_reliability(report, folder)
    if "codecs" in report:
        return draw_codecs(report, folder)
    if "events" in report:
        files = [folder / f"timeline.{suffix}" for suffix in ("png", "svg")]
        return [draw_timeline(report["events"], file) for file in files]
    if "graph" in report:
        return [draw_graph(report["graph"], folder / f"graph.{suffix}") for suffix in ("png", "svg")]
    if report.get("walk"):
        return [draw_walk(report["walk"], folder / f"walk.{suffix}") for suffix in ("png", "svg")]
    raise ValueError(
        "nothing to draw: expected a report of a suite, niah, ppl, towers, trimmer or doctor --codec, a trace, a "
        "graph, or an answer whose search walked"
    )
