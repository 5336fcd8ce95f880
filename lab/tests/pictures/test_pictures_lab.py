"""Pictures from a report's JSON alone: which are drawn, and that they show what the numbers say."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from everlong.pictures import draw_report
from everlong_lab.eval.baselines import BASELINES
from everlong_lab.eval.suite import DEFAULT_BASELINES
from everlong_lab.pictures.baselines import LABELS
from support.pictures import names_of

HEAT_MAP = {
    "by_kind": {},
    "model": "smollm2",
    "config": {"depths": 4},
    "questions": [{"length": 32_000, "depth_bin": row, "right": True} for row in range(4)],
}


def suite(lengths: tuple[int, ...] = (32_768, 131_072), budgets: bool = True) -> dict[str, Any]:
    """A report with made-up scores, through JSON as a file gives it back."""
    rng = random.Random(0)
    names = list(DEFAULT_BASELINES)
    if budgets:
        names += ["everlong:groups=1", "everlong:groups=2", "bm25:passages=1", "bm25:passages=2"]
    tasks = ["niah_single_1", "niah_multikey_2", "vt", "kv_retrieval", "babi_3", "dialogue_session"]

    def score(mean: float) -> dict[str, Any]:
        return {"n": 24, "mean": mean, "low": max(0.0, mean - 0.15), "high": min(1.0, mean + 0.15)}

    def baseline(number: int) -> dict[str, Any]:
        mean = 1 - number / len(names)
        return {
            "score": score(mean),
            "by_length": {str(length): score(mean) for length in lengths},
            "by_task": {task: {str(length): score(rng.random()) for length in lengths} for task in tasks},
            "cost": {"seconds": 1.0, "prefilled": 50, "context": 768 - 40 * number, "covered": mean, "prepared": {}},
        }

    questions = [
        {
            "id": f"{task}/{length}/{number}",
            "task": task,
            "length": length,
            "depth": (number + 0.5) / 8,
            "question": "?",
            "answers": ["!"],
            "replies": {name: {"score": float(rng.random() < 0.7), "covered": 1.0, "reply": "!"} for name in names},
        }
        for length in lengths
        for task in tasks
        for number in range(8)
    ]
    report = {
        "kind": "suite",
        "settings": {"model": "smollm2"},
        "lengths": list(lengths),
        "tasks": {task: {"family": "ruler", "about": ""} for task in tasks},
        "baselines": {name: baseline(number) for number, name in enumerate(names)},
        "questions": questions,
    }
    return json.loads(json.dumps(report))


@pytest.mark.slow
def test_a_suite_has_all_its_pictures_as_png_and_svg(tmp_path: Path) -> None:
    paths = draw_report(suite(), tmp_path / "new")
    expected = {
        f"{name}.{kind}" for name in ("accuracy", "tasks", "lengths", "depth", "budget") for kind in ("png", "svg")
    }
    assert names_of(paths) == expected
    for path in paths:
        if path.suffix == ".png":
            assert np.ptp(image.imread(path)[..., :3]) > 0.5
        else:
            assert path.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.slow
def test_pictures_that_have_nothing_to_show_are_not_drawn(tmp_path: Path) -> None:
    drawn = names_of(draw_report(suite((8_192,), budgets=False), tmp_path))
    assert {"accuracy.png", "tasks.png", "depth.png"} <= drawn
    assert not {"lengths.png", "budget.png"} & drawn
    report = suite(budgets=False)
    report["baselines"] = {"everlong:groups=1": report["baselines"]["everlong"]}
    for question in report["questions"]:
        question["replies"] = {"everlong:groups=1": question["replies"]["everlong"]}
    drawn = names_of(draw_report(report, tmp_path / "settings"))
    assert {"accuracy.png", "tasks.png"} <= drawn
    assert "lengths.png" not in drawn


@pytest.mark.slow
def test_the_same_report_gives_the_same_files(tmp_path: Path) -> None:
    first = draw_report(suite(), tmp_path / "a")
    second = draw_report(suite(), tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_every_baseline_has_a_label_and_nothing_else_has() -> None:
    assert set(LABELS) == set(BASELINES)


@pytest.mark.slow
def test_more_right_answers_make_a_longer_bar(tmp_path: Path) -> None:
    def orange(mean: float) -> int:
        report = suite((8_192,), budgets=False)
        report["baselines"] = {"everlong": report["baselines"]["everlong"], "gold": report["baselines"]["gold"]}
        report["baselines"]["everlong"]["by_length"]["8192"] = {"n": 9, "mean": mean, "low": mean, "high": mean}
        draw_report(report, tmp_path)
        red, green, blue = np.moveaxis(image.imread(tmp_path / "accuracy.png")[..., :3], -1, 0)
        return int(np.sum((red > 0.8) & (green < 0.4) & (blue < 0.2)))

    assert 0 < orange(0.2) < orange(0.5) < orange(1.0)


POLICIES = ("window", "random", "recent", "prompt", "full")


def test_perplexity_by_position_is_drawn(tmp_path: Path) -> None:
    curves = {key: [3.0 + 0.01 * n + 0.1 * place for n in range(15)] for place, key in enumerate(POLICIES)}
    report = {"by_position": curves, "model": "smollm2", "places": [{}] * 8, "config": {"prefix_tokens": 8_192}}
    assert names_of(draw_report(report, tmp_path)) == {"perplexity.png", "perplexity.svg"}
    report["by_position"] = {policy: [] for policy in POLICIES}
    assert draw_report(report, tmp_path / "none") == [], "no place has as many tokens as a point stands for"


def test_an_svg_of_a_report_has_no_date(tmp_path: Path) -> None:
    (first,), (second,) = (
        [path for path in draw_report(HEAT_MAP, tmp_path / folder) if path.suffix == ".svg"] for folder in "ab"
    )
    assert "<dc:date>" not in first.read_text(encoding="utf-8")
    assert first.read_bytes() == second.read_bytes()


def test_half_a_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no whole report"):
        draw_report({"by_kind": {}}, tmp_path)
    assert list(tmp_path.iterdir()) == []
