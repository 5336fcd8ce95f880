"""The picture of a Memory OS trace: what left the frame when, and what came back when."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from everlong.pictures.canvas import count_in_thousands, open_figure, write

_FRAME, _ARCHIVE, _RECALLED, _BRANCHED, _SIGNAL = "#9ecae1", "#d9d9d9", "#d94801", "#fdae6b", "#54278f"
_KEPT, _WOKEN = "#3182bd", "#238b45"


def draw_timeline(events: Sequence[Mapping[str, Any]], path: pathlib.Path) -> pathlib.Path:
    """Write a PNG or SVG, by the path's suffix. Across: the stream as it grew, in tokens; up: the text it consists of.

    `events` is a trace (`MemoryModel.trace`), as it is or as JSON gives it back. The picture has these marks:

    - What came back for something that was not remembered has a colour of its own, and stands where that was asked.
    - What came from another stream of the memory is a mark at the foot.
    - A block with kept tokens has a line from where it left the frame on, the thinner the fewer of them are left.
    - A tombstone that woke is a star at its place.
    - A signal stands where it was heard, hollow where nothing came of it.

    Raises ValueError for a trace in which nothing happened.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if not events:
        raise ValueError("the trace is empty: nothing has been read")
    end = max(max(map(_place, events)), 1)
    figure, axes = open_figure(9, 5.5, "What the model attends to as the stream grows")
    # What the frame holds lies between the newest token and the oldest that was not evicted yet.
    x, oldest = [0], [0]
    for event in events:
        if _branched(event):
            continue  # the frame got back what left it
        if event["what"] == "resume":  # the trace does not have what a frame before this one held
            x, oldest = [event["stream_position"]], [event["begin"]]
        elif event["what"] == "evict":
            x += [event["stream_position"]] * 2
            oldest += [oldest[-1], event["end"]]
    x.append(end)
    oldest.append(oldest[-1])
    axes.fill_between([0, end], [0, 0], [0, end], color=_ARCHIVE, linewidth=0)
    axes.fill_between(x, oldest, x, color=_FRAME, linewidth=0)
    strokes = _kept_strokes(events, x, oldest, end)
    for since, until, place, width in strokes:
        axes.plot([since, until], [place, place], color=_KEPT, linewidth=width, solid_capstyle="butt")
    for event in events:
        if event["what"] != "restore":
            continue
        at, color = _place(event), _BRANCHED if _branched(event) else _RECALLED
        for run in event["restored"]:
            if run["stream"] != event["stream"]:
                axes.plot(at, 0, marker="s", color=color, markersize=5, clip_on=False)
                continue
            axes.plot([at, at], [run["begin"], run["end"]], color=color, linewidth=3, solid_capstyle="butt")
            axes.plot(at, (run["begin"] + run["end"]) / 2, marker="o", color=color, markersize=4)
    in_vain = {event["begin"] for event in events if event["what"] == "signal passed over"}
    signals = [event for event in events if event["what"] in ("summarize signal", "retrieve signal")]
    for event in signals:
        heard = event["begin"]
        fill = "none" if heard in in_vain else _SIGNAL
        axes.plot(_place(event) if _branched(event) else heard, heard, "v", color=_SIGNAL, markerfacecolor=fill)
    woken = [event for event in events if event["what"] == "recall" and event["trigger"] == "tombstone"]
    for event in woken:
        axes.plot(_place(event), (event["begin"] + event["end"]) / 2, "*", color=_WOKEN, markersize=9, zorder=4)
    axes.set_xlim(0, 1.02 * end)  # so that a recall at the very end is seen whole
    axes.set_ylim(0, 1.02 * end)
    axes.set_xlabel("stream read and generated (tokens)")
    axes.set_ylabel("place in the stream (tokens)")
    for axis in (axes.xaxis, axes.yaxis):
        count_in_thousands(axis)
    handles = [
        Patch(color=_FRAME, label="in the frame"),
        Patch(color=_ARCHIVE, label="archived"),
        Line2D([], [], color=_RECALLED, marker="o", label="recalled"),
    ]
    if strokes:
        handles.insert(1, Line2D([], [], color=_KEPT, label="some of its tokens kept"))
    if any(map(_branched, events)):
        handles.append(Line2D([], [], color=_BRANCHED, marker="o", label="recalled, not remembered"))
    if any(run["stream"] != event["stream"] for event in events for run in event["restored"]):
        handles.append(Line2D([], [], color=_RECALLED, marker="s", linestyle="", label="recalled from another stream"))
    if woken:
        handles.append(Line2D([], [], color=_WOKEN, marker="*", linestyle="", label="a tombstone wakes"))
    if signals:
        handles.append(Line2D([], [], color=_SIGNAL, marker="v", linestyle="", label="signal (hollow: passed over)"))
    axes.legend(handles=handles, loc="upper left")
    return write(figure, path)


def _kept_strokes(
    events: Sequence[Mapping[str, Any]], x: Sequence[int], oldest: Sequence[int], end: int
) -> list[tuple[int, int, float, float]]:
    """Return for each block and each number of its kept tokens: begin and end, its place, a line's width."""
    changes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if _branched(event):
            continue
        if event["what"] == "resume":
            changes = {}
        elif event["what"] in ("trim", "trim again", "kept dropped"):
            block = (event["begin"], event["end"])
            changes.setdefault(block, []).append((event["stream_position"], event["tokens"]))
    strokes = []
    for (begin, block_end), steps in changes.items():
        left = next((at for at, still in zip(x, oldest, strict=True) if still > begin), end)
        ends = [*(at for at, _ in steps[1:]), end]
        for (at, tokens), until in zip(steps, ends, strict=True):
            if tokens > 0 and max(at, left) < until:
                strokes.append((max(at, left), until, (begin + block_end) / 2, 0.4 + 1.6 * tokens / steps[0][1]))
    return strokes


def _branched(event: Mapping[str, Any]) -> bool:
    return event.get("branched_at") is not None


def _place(event: Mapping[str, Any]) -> int:
    """Return where the stream stood; a branch counts on from there, in a text that is not kept."""
    return int(event["branched_at"] if _branched(event) else event["stream_position"])
