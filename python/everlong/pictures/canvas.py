"""What all pictures share: how a figure is opened and saved, and the colours."""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Mapping
from typing import Any

OURS, RIVAL, OWN_RATE, CONTROL = "#d94801", "#6baed6", "#969696", "#bdbdbd"
_COLOURS: Mapping[str, str] = {"everlong": OURS, "gold": OWN_RATE, "random": CONTROL}
LABELS: Mapping[str, str] = {
    "everlong": "everlong",
    "heads": "everlong, heads alone",
    "lexical": "everlong, words alone",
    "mean_pool": "everlong, mean keys",
    "recent": "newest pages",
    "random": "random pages",
    "window": "window alone",
    "full": "full attention, own window",
    "bm25": "BM25, text read again",
    "minilm": "MiniLM, text read again",
    "gold": "gold text alone",
}


def colour_of(baseline: str) -> str:
    return _COLOURS.get(baseline.partition(":")[0], RIVAL)


def label_of(baseline: str) -> str:
    name, _, settings = baseline.partition(":")
    return LABELS.get(name, name) + (f" ({settings})" if settings else "")


def require_matplotlib() -> None:
    """ValueError where it is not there: before the work whose picture is to be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError('pictures need the package matplotlib: pip install "matplotlib>=3.9"')


def open_figure(width: float, height: float) -> tuple[Any, Any, Any]:
    """pyplot, figure and axes, drawn without a display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return pyplot, figure, axes


def save(pyplot: Any, figure: Any, folder: pathlib.Path, name: str) -> list[pathlib.Path]:
    """`name`.png and `name`.svg in `folder`."""
    paths = [write(figure, folder / f"{name}.{suffix}") for suffix in ("png", "svg")]
    pyplot.close(figure)
    return paths


def write(figure: Any, path: pathlib.Path) -> pathlib.Path:
    """One file, PNG or SVG by its suffix, into a folder that is made if it is not there."""
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    # The same picture is the same file: without a date, and with names that are not drawn at random.
    with matplotlib.rc_context({"svg.hashsalt": "everlong"}):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path
