"""The loop that every part learns by: checks, early ends, what a checkpoint keeps, what is better."""

from __future__ import annotations

import operator
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from everlong_lab.training.loop import LoopSettings, Losses, learn

SETTINGS = LoopSettings(steps=20, batch=1, learning_rate=0.1, warmup=1, falling=False, check_every=5, threads=1)


class Number(torch.nn.Module):
    def __init__(self, at: float = 0.0) -> None:
        super().__init__()
        self.at = torch.nn.Parameter(torch.tensor(at))


def towards(goal: float) -> Any:
    def lesson(number: Any, step: int, drawn: np.random.Generator, said: Losses) -> torch.Tensor:
        return said.record("loss", (number.at - goal).square())

    return lesson


def test_what_came_nearest_is_kept_and_the_untrained_is_among_it() -> None:
    near = learn(Number(), towards(1.0), lambda number: float((number.at - 1).abs()), SETTINGS)
    assert [entry["step"] for entry in near.log] == [0, 5, 10, 15, 20]
    assert "loss" not in near.log[0]
    assert near.log[1]["loss"] > near.log[2]["loss"]
    assert min(near.held_out) < near.held_out[0]
    away = Number(1.0)
    learn(away, towards(5.0), lambda number: float((number.at - 1).abs()), SETTINGS)
    assert float(away.at) == 1.0


@pytest.mark.parametrize(("better", "kept"), [(operator.lt, 0.0), (operator.gt, 0.0), (operator.ge, 20.0)])
def test_of_equal_ones_the_first_or_the_last_is_kept(better: Any, kept: float) -> None:
    steps = iter(range(0, 100, 5))

    def always_the_same(number: Any) -> dict[str, float]:
        with torch.no_grad():
            number.at.fill_(float(next(steps)))
        return {"held out": 0.5, "what else is known": 1.0}

    own = Number()
    found = learn(own, towards(1.0), always_the_same, SETTINGS, better=better)
    assert float(own.at) == kept
    assert all(entry["what else is known"] == 1.0 for entry in found.log)


def test_it_ends_where_nothing_becomes_better_where_time_is_over_and_where_there_is_no_more_to_learn() -> None:
    patient = LoopSettings(steps=1000, batch=1, check_every=2, patience=3)
    assert learn(Number(), towards(1.0), lambda number: 1.0, patient).steps == 6
    hurried = LoopSettings(steps=1000, batch=1, minutes=0.0)
    assert learn(Number(), towards(1.0), lambda number: 1.0, hurried).steps == 1

    def seven(number: Any, step: int, drawn: np.random.Generator, said: Losses) -> torch.Tensor | None:
        return (number.at - 1).square() if step < 7 else None  # type: ignore[no-any-return]

    assert learn(Number(), seven, lambda number: 1.0, SETTINGS).steps == 7


def test_a_module_is_checked_as_it_works_and_learns_with_what_is_dropped() -> None:
    seen: list[tuple[str, bool]] = []

    def lesson(number: Any, step: int, drawn: np.random.Generator, said: Losses) -> torch.Tensor:
        seen.append(("lesson", number.training))
        return (number.at - 1).square()  # type: ignore[no-any-return]

    def held_out(number: Any) -> float:
        seen.append(("check", number.training))
        return 1.0

    learn(Number(), lesson, held_out, SETTINGS)
    assert set(seen) == {("lesson", True), ("check", False)}


def test_a_gradient_is_cut_where_that_is_asked_for() -> None:
    """Of plain steps: AdamW's are as long whatever the gradient, but not where it changes its size."""

    def lesson(number: Any, step: int, drawn: np.random.Generator, said: Losses) -> torch.Tensor:
        return number.at * (1000.0 if step == 0 else 1.0)  # type: ignore[no-any-return]

    ends = []
    for clip in (1.0, None):
        settings = LoopSettings(steps=5, batch=1, warmup=1, falling=False, clip=clip, weight_decay=0.0)
        number = Number()
        learn(number, lesson, lambda number: float(number.at), settings)
        ends.append(float(number.at.detach()))
    assert ends[0] < ends[1] < 0


class Counting:
    """A part that goes by numbers of its own, which a checkpoint keeps."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def lesson(self, number: Any, step: int, drawn: np.random.Generator, said: Losses) -> torch.Tensor:
        return (number.at - self.random.random()).square()  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        return {"random": dict(self.random.bit_generator.state)}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.random.bit_generator.state = state["random"]


def test_what_a_part_keeps_comes_back(tmp_path: pathlib.Path) -> None:
    def train(folder: pathlib.Path | None, stop_at: int = -1) -> float:
        counting, number = Counting(), Number()

        def told(step: int, found: dict[str, float]) -> None:
            if step == stop_at:
                raise KeyboardInterrupt

        learn(
            number,
            counting.lesson,
            lambda number: 1.0,
            SETTINGS,
            kept=counting,
            checkpoints=folder,
            progress=told,
            better=operator.ge,
        )
        return float(number.at)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, stop_at=15)
    assert train(tmp_path) == train(None)
