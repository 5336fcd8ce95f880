"""Everything that is written in a picture can be read, whatever the report: drawn, and measured where it stands."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from everlong.pictures import draw_report
from everlong_lab.corpora.tasks import tasks_of
from everlong_lab.eval.suite import DEFAULT_BASELINES
from support.drawn_text import saved_figures
from support.pictures import MILLION, assert_readable

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


@pytest.mark.slow
@pytest.mark.parametrize("name", REPORTS)
def test_every_text_of_a_picture_can_be_read(name: str, tmp_path: Path) -> None:
    with saved_figures() as figures:
        drawn = draw_report(json.loads(json.dumps(REPORTS[name])), tmp_path)
    assert drawn
    assert figures
    assert_readable(figures)
