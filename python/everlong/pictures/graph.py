"""The picture of a memory's graph: topics by colour, time from left to right."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from everlong.pictures.canvas import LABEL_SIZE, SMALL_SIZE, count_in_thousands, literal, open_figure, widest, write

_MOST_TOPICS = 24  # rows of their own; all smaller ones, and those of one block, share the last
_WAY, _OTHERS = "#d9d9d9", "#969696"
_WORDS = 3  # of a topic's name


def draw_graph(blocks: Sequence[Mapping[str, Any]], path: pathlib.Path) -> pathlib.Path:
    """Write a PNG or SVG, by the path's suffix. Across: blocks in the order of archiving; up: a row for every topic.

    `blocks` is the list of that name of `everlong graph --json`. A dot is a block, the larger the more tokens it has;
    the grey line leads from each to the next. Topics of one wider topic have one colour and stand together. A topic is
    called by what its blocks are about, where a tagger said so, else by the source of most of them. ValueError where no
    block belongs to a topic.
    """
    from matplotlib import colormaps

    placed = [block for block in blocks if block["topic"] is not None]
    if not placed:
        raise ValueError("no block belongs to a topic: there is nothing to draw")
    of_topic = collections.defaultdict(list)
    for at, block in enumerate(blocks):
        if block["topic"] is not None:
            of_topic[block["topic"]].append((at, block))
    several = [topic for topic, of in of_topic.items() if len(of) > 1] or list(of_topic)
    largest = sorted(several, key=lambda topic: (-len(of_topic[topic]), topic))[:_MOST_TOPICS]
    above = {topic: of_topic[topic][0][1]["above"] for topic in largest}
    first_of = {
        wide: min(of_topic[topic][0][0] for topic in largest if above[topic] == wide) for wide in above.values()
    }
    rows = sorted(largest, key=lambda topic: (first_of[above[topic]], above[topic] or 0, of_topic[topic][0][0]))
    row_of = {topic: len(rows) - row for row, topic in enumerate(rows)}
    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    wide_topics = list(dict.fromkeys(above[topic] for topic in rows))
    colour_of = {topic: colours[wide_topics.index(above[topic]) % len(colours)] for topic in rows}

    names = {topic: _name_of([block for _, block in of_topic[topic]]) for topic in rows}
    others = len(of_topic) - len(rows)
    rest = f"{others:,} smaller topics" if others else ""
    labels = [*names.values(), rest]
    height = max(3.0, 0.28 * (len(rows) + bool(others)) + 1.2)
    figure, axes = open_figure(7 + widest(labels, SMALL_SIZE), height, "What a memory is about, as it was read")
    y_of = [row_of.get(block["topic"], 0) for block in blocks if block["topic"] is not None]
    x_of = [at for at, block in enumerate(blocks) if block["topic"] is not None]
    axes.plot(x_of, y_of, color=_WAY, linewidth=0.8, zorder=1)
    most = max(block["tokens"] for block in placed)
    for x, y, block in zip(x_of, y_of, placed, strict=True):
        colour = colour_of.get(block["topic"], _OTHERS)
        axes.scatter(x, y, s=15 + 75 * block["tokens"] / most, color=[colour], zorder=2, linewidths=0)
    axes.set_yticks(
        [row_of[topic] for topic in rows] + ([0] if others else []),
        [literal(names[topic]) for topic in rows] + ([rest] if others else []),
        fontsize=SMALL_SIZE,
    )
    for label, topic in zip(axes.get_yticklabels(), rows, strict=False):
        label.set_color(colour_of[topic])
    axes.set_xlabel("blocks in the order of reading", fontsize=LABEL_SIZE)
    count_in_thousands(axes.xaxis)
    axes.set_ylim(-0.7 if others else 0.3, len(rows) + 0.7)
    return write(figure, path)


def _name_of(blocks: Sequence[Mapping[str, Any]]) -> str:
    words = collections.Counter(word for block in blocks for word in block["keyphrases"])
    if words:
        return ", ".join(word for word, _ in sorted(words.items(), key=lambda item: (-item[1], item[0]))[:_WORDS])
    sources = collections.Counter(block["source"] or "conversation" for block in blocks)
    return sources.most_common(1)[0][0]
