"""The picture of a memory's graph: topics by colour, time from left to right."""

from __future__ import annotations

import collections
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from everlong.pictures.canvas import (
    LABEL_SIZE,
    SMALL_SIZE,
    count_in_thousands,
    inches_of,
    literal,
    open_figure,
    widest,
    write,
)

_MOST_TOPICS = 24  # with a row of their own; all smaller ones, and those of one block, share the last row
_WAY, _OTHERS, _BORDER = "#d9d9d9", "#969696", "#bdbdbd"
_TITLE = "What a memory is about, as it was read\na dot is a block; topics of one colour belong to one wider topic"
_WIDTH = 8.0  # inches, of the blocks


def draw_graph(blocks: Sequence[Mapping[str, Any]], path: pathlib.Path) -> pathlib.Path:
    """Write a PNG or SVG, by the path's suffix. Across: blocks in the order of archiving; up: a row for every topic.

    `blocks` is the list "graph" of `everlong graph --json`. A dot is a block, the larger the more tokens it has. The
    grey line leads from each to the next block of a topic that has a row. Rows stand in the order in which the topics
    began, named by what they are about. Topics of one wider topic have one colour. Above stands what was read, where
    there is room for its name. Raises ValueError where no block belongs to a topic.
    """
    from matplotlib import colormaps

    placed = [(at, block) for at, block in enumerate(blocks) if block["topic"] is not None]
    if not placed:
        raise ValueError("no block belongs to a topic: there is nothing to draw")
    of_topic: dict[int, list[tuple[int, Mapping[str, Any]]]] = collections.defaultdict(list)
    for at, block in placed:
        of_topic[block["topic"]].append((at, block))
    several = [topic for topic, of in of_topic.items() if len(of) > 1] or list(of_topic)
    largest = sorted(several, key=lambda topic: (-len(of_topic[topic]), topic))[:_MOST_TOPICS]
    rows = sorted(largest, key=lambda topic: of_topic[topic][0][0])
    row_of = {topic: len(rows) - row for row, topic in enumerate(rows)}
    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    above = {topic: of_topic[topic][0][1]["above"] for topic in rows}
    wide_topics = list(dict.fromkeys(above.values()))
    colour_of = {topic: colours[wide_topics.index(above[topic]) % len(colours)] for topic in rows}

    names = {topic: of_topic[topic][0][1]["about"] for topic in rows}
    others = len(of_topic) - len(rows)
    rest = f"{others:,} smaller topics" if others else ""
    height = max(3.0, 0.28 * (len(rows) + bool(others)) + 1.5)
    width = _WIDTH + widest([*names.values(), rest], SMALL_SIZE)
    figure, axes = open_figure(width, height, _TITLE)
    x_of = [at for at, _ in placed]
    y_of = [row_of.get(block["topic"], 0) for _, block in placed]
    way = [(x, y) for x, y in zip(x_of, y_of, strict=True) if y > 0]
    axes.plot([x for x, _ in way], [y for _, y in way], color=_WAY, linewidth=0.8, zorder=1)
    most = max(block["tokens"] for _, block in placed)
    for x, y, (_, block) in zip(x_of, y_of, placed, strict=True):
        colour = colour_of.get(block["topic"], _OTHERS) if y else _OTHERS
        axes.scatter(
            x, y, alpha=1.0 if y else 0.5, s=12 + 40 * block["tokens"] / most, color=[colour], zorder=2, linewidths=0
        )
    axes.set_yticks(
        [row_of[topic] for topic in rows] + ([0] if others else []),
        [literal(names[topic]) for topic in rows] + ([rest] if others else []),
        fontsize=SMALL_SIZE,
    )
    for label, topic in zip(axes.get_yticklabels(), rows, strict=False):
        label.set_color(colour_of[topic])
    axes.set_xlabel("blocks in the order of reading", fontsize=LABEL_SIZE)
    count_in_thousands(axes.xaxis)
    axes.set_xlim(-0.01 * len(blocks) - 0.5, 1.01 * len(blocks) - 0.5)
    axes.set_ylim(-0.7 if others else 0.3, len(rows) + 0.7)
    _name_sources(axes, [block["source"] for block in blocks])
    return write(figure, path)


def _name_sources(axes: Any, sources: Sequence[str]) -> None:
    """Draw a line where another source begins, and above each run as much of its name as there is room for."""
    begin = 0
    for source, run in itertools.groupby(sources):
        end = begin + len(list(run))
        if begin > 0:
            axes.axvline(begin - 0.5, color=_BORDER, linewidth=0.8, linestyle=":", zorder=0)
        room = 0.9 * _WIDTH * (end - begin) / len(sources)
        name = _fitting(source, room)
        if name:
            axes.annotate(
                literal(name),
                ((begin + end - 1) / 2, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=SMALL_SIZE,
                color=_OTHERS,
            )
        begin = end


def _fitting(name: str, room: float) -> str:
    """Return the name, on two lines where it must be; "" where there is no room."""
    words = name.replace("-", " ").replace("_", " ").split()
    one = " ".join(words)
    if inches_of(one, SMALL_SIZE) <= room:
        return one
    both = [(" ".join(words[:at]), " ".join(words[at:])) for at in range(1, len(words))]
    narrowest = min(both, key=lambda lines: widest(lines, SMALL_SIZE), default=(one,))
    return "\n".join(narrowest) if widest(narrowest, SMALL_SIZE) <= room else ""
