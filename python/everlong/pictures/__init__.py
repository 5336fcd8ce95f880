"""Pictures of what a memory did and holds, drawn from JSON alone: PNG and SVG."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from everlong import plugins
from everlong.pictures.canvas import require_matplotlib
from everlong.pictures.codecs import draw_codecs
from everlong.pictures.graph import draw_graph
from everlong.pictures.timeline import draw_timeline
from everlong.pictures.walk import draw_walk

MAY_IMPORT: Final = ("plugins",)

# What draws the pictures of a report into a folder and returns the files; None for what it does not know. An entry
# point of this group names one more.
Draw = Callable[[Mapping[str, Any], pathlib.Path], list[pathlib.Path] | None]
GROUP = "everlong.pictures"

__all__ = ["draw_report", "require_matplotlib"]


def draw_report(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw every picture that a report has, into `folder`; return the files.

    `report` is one of these, as JSON gives it back:

    - a trace;
    - what `doctor --codec` measured;
    - a memory's graph (`everlong graph --json`);
    - an answer whose search walked (`everlong ask --json`);
    - with everlong-lab: the report of a suite, of `eval niah`, `eval ppl`, or of `eval towers` or `eval trimmer` with
      `--keep`.

    Raises ValueError for anything else.
    """
    if isinstance(report, Mapping):
        draws: Iterable[Draw] = itertools.chain([_draw], plugins.load(GROUP))
        try:
            drawn = next((files for draw in draws if (files := draw(report, folder)) is not None), None)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"no whole report: {error!r} is not as it should be") from error
        if drawn is not None:
            return drawn
    raise ValueError(
        "nothing to draw: expected a trace, a graph, a report of doctor --codec, an answer whose search walked, or, "
        "with everlong-lab, a report of a suite, niah, ppl, towers or trimmer"
    )


def _draw(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path] | None:
    if "codecs" in report:
        return draw_codecs(report, folder)
    if "events" in report:
        files = [folder / f"timeline.{suffix}" for suffix in ("png", "svg")]
        return [draw_timeline(report["events"], file) for file in files]
    if "graph" in report:
        return [draw_graph(report["graph"], folder / f"graph.{suffix}") for suffix in ("png", "svg")]
    if report.get("walk"):
        return [draw_walk(report["walk"], folder / f"walk.{suffix}") for suffix in ("png", "svg")]
    return None
