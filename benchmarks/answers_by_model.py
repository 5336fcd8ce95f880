"""Draw how answers grow with the model, at the same texts and questions: what questions.py kept of several models.

    python benchmarks/answers_by_model.py PICTURE.svg NAME=FOLDER [NAME=FOLDER ...] [--replies replies]

NAME stands below the model's place, smallest model first; FOLDER is that of `questions.py`. Questions that one of the
models was not asked count for none.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any

import numpy as np

from everlong.pictures.canvas import (
    OURS,
    OWN_RATE,
    RIVAL,
    SMALL_SIZE,
    legend_beside,
    open_figure,
    require_matplotlib,
    room_for_legend,
)
from everlong_lab.eval.statistics import wilson_interval

LINES = (
    ("gold right", "right, the passage alone in the prompt", OWN_RATE),
    ("found", "all evidence came back", RIVAL),
    ("right", "right, from memory", OURS),
)


def draw(replies: dict[str, list[dict[str, Any]]], picture: pathlib.Path) -> None:
    """Draw the share of each line by model, with its 95 % interval (Wilson)."""
    asked = len(next(iter(replies.values())))
    wide, _ = room_for_legend([label for _, label, _ in LINES])
    figure, axes = open_figure(3.6 + wide, 3.0, f"The same texts, and the same {asked} questions, by model")
    for number, (field, label, colour) in enumerate(LINES):
        right = [sum(row[field] for row in rows) for rows in replies.values()]
        share = np.array([100 * n / len(rows) for n, rows in zip(right, replies.values(), strict=True)])
        ends = 100 * np.array([wilson_interval(n, len(rows)) for n, rows in zip(right, replies.values(), strict=True)])
        at = np.arange(len(share)) + 0.06 * (number - 1)  # beside each other, so that no interval hides another
        axes.errorbar(
            at, share, yerr=np.abs(ends.T - share), color=colour, label=label, marker="o", capsize=3, linewidth=2
        )
    axes.set_xticks(range(len(replies)), list(replies), fontsize=SMALL_SIZE)
    axes.set_ylim(0, 100)
    axes.set_ylabel("questions (%), 95 % interval")
    legend_beside(axes)
    figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=pathlib.Path)
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--replies", default="replies", help="name of the file of replies in each folder")
    given = parser.parse_args()
    require_matplotlib()
    kept: dict[str, dict[str, dict[str, Any]]] = {}  # by model, by question
    for one in given.models:
        name, _, folder = one.partition("=")
        kept[name] = json.loads((pathlib.Path(folder) / f"{given.replies}.json").read_text("utf-8"))
    common = set.intersection(*map(set, kept.values()))
    replies = {name: [row for words, row in rows.items() if words in common] for name, rows in kept.items()}
    draw(replies, given.picture)
    for name, rows in replies.items():
        print(name, len(rows), *(f"{field} {sum(row[field] for row in rows)}" for field, _, _ in LINES), sep=" | ")


if __name__ == "__main__":
    main()
