"""What each codec costs a model: bytes of a token, and how far what follows is from the exact cache."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from everlong.pictures.canvas import OURS, RIVAL, SMALL_SIZE, count_in_thousands, literal, open_figure, save

_LEAST_KL = 1e-6  # where what is nearer is drawn: a logarithm has no 0


def draw_codecs(report: Mapping[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw a dot for each codec, and a line through the steps of the transform."""
    figure, axes = open_figure(7.5, 4.5, f"{report['model']}: what follows a coded context")
    rows = [(row["codec"], row["bytes"], max(row["kl"], _LEAST_KL)) for row in report["codecs"]]
    steps = [row for row in rows if row[0].startswith("transform")]
    others = [row for row in rows if row not in steps]
    for marker, colour, some in (("o-", OURS, steps), ("s", RIVAL, others)):
        axes.plot([size for _, size, _ in some], [kl for _, _, kl in some], marker, color=colour, markersize=5)
    for name, size, kl in rows:
        label = name.removeprefix("transform, ")
        axes.annotate(literal(label), (size, kl), (5, 4), textcoords="offset points", fontsize=SMALL_SIZE)
    axes.set_yscale("log")
    axes.set_xlabel("bytes a token, of all layers")
    axes.set_ylabel("KL from the exact cache (nats a token)")
    axes.set_xlim(0, 1.1 * max(size for _, size, _ in rows))
    count_in_thousands(axes.xaxis)
    return save(figure, folder, "codecs")
