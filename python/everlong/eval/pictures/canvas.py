"""What all pictures share: how a figure is opened and saved, and the colours."""

from __future__ import annotations

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
    "snapkv": "SnapKV, own window",
    "gold": "gold text alone",
}


def colour_of(baseline: str) -> str:
    return _COLOURS.get(baseline.partition(":")[0], RIVAL)


def label_of(baseline: str) -> str:
    name, _, settings = baseline.partition(":")
    return LABELS.get(name, name) + (f" ({settings})" if settings else "")


def open_figure(width: float, height: float) -> tuple[Any, Any, Any]:
    """pyplot, figure and axes, drawn without a display."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "everlong"  # the same picture is the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return pyplot, figure, axes


def save(pyplot: Any, figure: Any, folder: pathlib.Path, name: str) -> list[pathlib.Path]:
    """`name`.png and `name`.svg in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    figure.savefig(paths[0], dpi=150)
    figure.savefig(paths[1], metadata={"Date": None})
    pyplot.close(figure)
    return paths
