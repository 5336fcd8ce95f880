"""Everything that is written in a picture can be read, whatever the report: drawn, and measured where it stands."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from everlong.corpora.tasks import tasks_of
from everlong.eval.suite import DEFAULT_BASELINES
from everlong.pictures import draw_report
from support import REPOSITORY
from support.drawn_text import faults, overlap, saved_figures

MILLION = 1_000_000
# Close to each other, too: the powers of two beside the round numbers.
LENGTHS = (4_096, 8_192, 16_384, 32_000, 32_768, 65_536, 100_000, 131_072, 262_144, 524_288, MILLION, 1_048_576)
MODEL = "/mnt/models/somebody/" + "a-model-whose-name-says-all-that-was-done-to-it-" * 4
RATES: Mapping[str, Callable[[], float]] = {
    "none": lambda: 0.0,
    "all": lambda: 1.0,
    "some": random.Random(0).random,
}


def niah(lengths: tuple[int, ...], depths: int, asked: int, rate: str = "some", model: str = MODEL) -> dict[str, Any]:
    questions = [
        {"length": length, "depth_bin": row, "right": RATES[rate]() > 0.5}
        for length in lengths
        for row in range(depths)
        for _ in range(asked)
    ]
    return {"by_kind": {}, "model": model, "config": {"depths": depths}, "questions": questions}


def suite(
    lengths: tuple[int, ...],
    names: tuple[str, ...],
    tasks: tuple[str, ...],
    rate: str = "some",
    context: Callable[[int], float] = lambda number: 70.5 * number,
    model: str = MODEL,
) -> dict[str, Any]:
    def score() -> dict[str, Any]:
        mean = RATES[rate]()
        return {"n": 24, "mean": mean, "low": max(0.0, mean - 0.15), "high": min(1.0, mean + 0.15)}

    return {
        "kind": "suite",
        "settings": {"model": model},
        "lengths": list(lengths),
        "tasks": {task: {} for task in tasks},
        "baselines": {
            name: {
                "score": score(),
                "by_length": {str(length): score() for length in lengths},
                "by_task": {task: {str(length): score() for length in lengths} for task in tasks},
                "cost": {"context": context(number)},
            }
            for number, name in enumerate(names)
        },
        "questions": [
            {"length": length, "depth": depth / 10, "replies": {name: {"score": RATES[rate]()} for name in names}}
            for length in lengths
            for depth in range(11)
        ],
    }


def ppl(curve: list[float], model: str = MODEL, places: int = 40) -> dict[str, Any]:
    """`curve`: nats a token, by position."""
    return {
        "by_position": {policy: curve for policy in ("window", "random", "recent", "prompt", "full")},
        "model": model,
        "places": [{}] * places,
        "config": {"prefix_tokens": MILLION},
    }


def trace(tokens: int, recalls: int, branched: bool = False) -> dict[str, Any]:
    """A stream that is evicted by halves, recalls all over it and from another one, signals that are passed over."""
    events: list[dict[str, Any]] = []
    for number in range(recalls):
        at = tokens * (number + 1) // recalls
        base = {"stream": 0, "stream_position": at, "begin": 0, "end": at // 2, "restored": [], "branched_at": None}
        first, last = tokens * (number // 2) // recalls, tokens * (number // 2 + 1) // recalls
        runs = [{"block": number // 2, "stream": stream, "begin": first, "end": last} for stream in (0, 1)]
        events.append(base | {"what": "evict"})
        events.append(base | {"what": "restore", "restored": runs, "branched_at": at if branched else None})
        events += [base | {"what": what, "begin": at, "end": at} for what in ("summarize signal", "signal passed over")]
    return {"events": events}


NAMES = tuple(DEFAULT_BASELINES)
SETTINGS = tuple(f"everlong:groups={groups},index=heads+lexical+embedding,neighbours=2" for groups in range(1, 13))
BUDGETS = tuple(f"{name}:passages={count}" for name in ("bm25", "minilm", "everlong", "own") for count in range(1, 5))
TASKS = tuple(task.name for task in tasks_of("all"))
LONG_TASKS = tuple(f"what-was-said-in-the-session-of-day-{day}-by-somebody-else" for day in range(5))
RESULTS = sorted((REPOSITORY / "docs" / "results").glob("*.json"))

REPORTS: dict[str, dict[str, Any]] = {
    "niah, one point": niah((8_192,), 1, 1),
    "niah, a short name": niah((MILLION,), 10, 1, model="m"),
    "niah, none right": niah((32_000, MILLION), 10, 8, "none"),
    "niah, all right": niah((32_000, MILLION), 10, 8, "all"),
    "niah, many": niah((*LENGTHS, 10_000_000, 100_000_000), 25, 1),
    "niah, many of a cell": niah((4_096, MILLION), 5, 4_000),
    "suite, one point": suite((MILLION,), ("everlong",), ("vt",), model="m"),
    "suite, none right": suite((8_192, MILLION), NAMES, TASKS, "none"),
    "suite, all right": suite((8_192, MILLION), NAMES + BUDGETS, TASKS[:5], "all"),
    "suite, many": suite(LENGTHS, NAMES + SETTINGS + BUDGETS, TASKS),
    "suite, long names": suite((MILLION,), SETTINGS, LONG_TASKS),
    "suite, a short and a long name": suite((MILLION,), ("gold", "x" * 60), ("vt", "y" * 60)),
    "suite, names that look like formulas": suite(
        (4_096, MILLION), ("$\\own$", "bm25:a$b$=1", "bm25:a$b$=2"), ("$\\task$", "vt"), model="at $\\best$"
    ),
    "suite, a million tokens back": suite((8_192,), BUDGETS, TASKS, context=lambda number: 1e5 * number),
    "suite, all the same back": suite((8_192,), BUDGETS, TASKS, context=lambda _: 0.0),
    "ppl, one point": ppl([1.0]),
    "ppl, as good as the same": ppl([1.0 + 1e-7 * n for n in range(15)]),
    "ppl, of a model that knows nothing": ppl([14.0 + 0.1 * n for n in range(15)]),
    "ppl, a million tokens": ppl([1.0 + 1e-4 * n for n in range(MILLION // 32)], places=1_000),
    "a trace of one token": trace(1, 1),
    "a trace of a million tokens": trace(MILLION, 60),
    "a trace of a hundred million tokens": trace(100 * MILLION, 3, branched=True),
}


def assert_readable(figures: list[Figure]) -> None:
    found = [fault for figure in figures for fault in faults(figure)]
    assert not found, "\n".join(found[:20])


@pytest.mark.slow
@pytest.mark.parametrize("name", REPORTS)
def test_every_text_of_a_picture_can_be_read(name: str, tmp_path: Path) -> None:
    with saved_figures() as figures:
        drawn = draw_report(json.loads(json.dumps(REPORTS[name])), tmp_path)
    assert drawn
    assert figures
    assert_readable(figures)


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_every_text_of_a_picture_of_what_was_measured_can_be_read(file: Path, tmp_path: Path) -> None:
    with saved_figures() as figures:
        draw_report(json.loads(file.read_text(encoding="utf-8")), tmp_path)
    assert figures
    assert_readable(figures)


@pytest.mark.parametrize("sizes", [[10_000], [10_000, 100_000, MILLION, 16 * MILLION]])
def test_every_text_of_the_indexes_picture_can_be_read(
    sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    archives = [
        {"tokens": size}
        | {name: size * 1e-8 * n for n, name in enumerate(("heads", "two levels", "read", "lexical"), 1)}
        for size in sizes
    ]
    with saved_figures() as figures:
        importlib.import_module("index").plot_archives({"archives": archives, "threads": 2}, tmp_path / "index.png")
    assert_readable(figures)


def labelled(title: str = "") -> tuple[Figure, Any]:
    """A figure in which everything can be read."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([1, 2], [3, 4])
    axes.set(xlabel="time (s)", ylabel="perplexity", title=title)
    return figure, axes


def no_label(axes: Any) -> None:
    axes.set_xlabel("")


def no_unit(axes: Any) -> None:
    axes.set_xlabel("time")


def out_of_the_figure(axes: Any) -> None:
    axes.set_title("a long title " * 20)


def over_another(axes: Any) -> None:
    axes.text(1.5, 3.5, "here is one")
    axes.text(1.5, 3.5, "another")


def too_near(axes: Any) -> None:
    axes.set_xticks([1, 1.15], ["1,000,000", "1,048,576"])


def over_a_turned_one(axes: Any) -> None:
    axes.text(1.5, 3.5, "turned, and rather long", rotation=45, ha="center", va="center")
    axes.text(1.5, 3.5, "flat", ha="center", va="center")


def the_same_twice(axes: Any) -> None:
    axes.set_xticks([1, 2], ["0", "0"])


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (no_label, "the x axis of '' has no label"),
        (no_unit, "the x axis of '' names no unit: 'time'"),
        (out_of_the_figure, "is not all inside the figure"),
        (over_another, "'here is one' overlaps 'another'"),
        (too_near, "'1,000,000' overlaps '1,048,576'"),
        (over_a_turned_one, "'turned, and rather long' overlaps 'flat'"),
        (the_same_twice, "has the same tick label twice"),
    ],
)
def test_what_cannot_be_read_is_found(spoil: Callable[[Any], None], fault: str) -> None:
    figure, axes = labelled()
    assert faults(figure) == []
    spoil(axes)
    assert any(fault in one for one in faults(figure))


def test_turned_texts_side_by_side_do_not_overlap() -> None:
    """The upright rectangles around them do."""
    figure, axes = labelled()
    for x in (1.3, 1.4, 1.5):
        axes.text(x, 3.5, "turned, and rather long", rotation=60, ha="center", va="center")
    assert faults(figure) == []
    square = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    diamond = np.array([[1.0, 0.0], [2.0, 1.0], [1.0, 2.0], [0.0, 1.0]])
    assert overlap(square, diamond)
    assert not overlap(square, diamond + 0.5)
    assert not overlap(square, square + np.array([1.0, 0.0]))
