"""The loop that is gone through by whatever learns from lessons: checks on texts that are held out, checkpoints.

A module learns from lessons, each of which draws what it is about from random numbers of its own step: so a run that
was cut short goes on as if it had not been.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import math
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

Losses = dict[str, list[float]]
Told = Callable[[int, dict[str, float]], None]
# A loss, or its summands one after the other: the gradient of each is taken before the next is computed.
Lesson = Callable[[Any, int, np.random.Generator, Losses], torch.Tensor | Iterator[torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """How long, and how fast; the subclasses say what of."""

    steps: int = 400
    batch: int = 4  # lessons a step
    learning_rate: float = 2e-3
    warmup: int = 10
    falling: bool = True  # the learning rate, to a fiftieth, as a cosine does
    weight_decay: float = 0.01
    check_every: int = 20  # steps; what came nearest on held-out texts is kept
    seed: int = 0
    minutes: float | None = None  # no step begins later
    threads: int | None = None


@dataclasses.dataclass(frozen=True)
class Learned:
    state: dict[str, torch.Tensor]  # of the module, as it was at the best check
    steps: int
    minutes: float
    log: tuple[dict[str, float], ...]  # at each check; the first one is of the untrained module


def learn(
    module: torch.nn.Module,
    lesson: Lesson,
    held_out: Callable[[Any], float],
    settings: LoopSettings,
    *,
    rates: Mapping[str, float] | None = None,
    checkpoints: pathlib.Path | None = None,
    progress: Told | None = None,
) -> Learned:
    """From the last checkpoint where there is one; the same bits for one seed, machine and number of threads.

    `lesson` is told its number, of which `batch` make a step, and gives a loss; what that is made of it names in the
    dict that it is given. `held_out` says how far the module is from what is wanted, on texts that no lesson is about.
    Both are given the module as `accelerate` wraps it. `rates` are learning rates of the module's children by their
    names, in place of the settings'.
    """
    accelerate = importlib.import_module("accelerate")  # the extra "train"
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    accelerator = accelerate.Accelerator(cpu=not torch.cuda.is_available())
    optimizer = torch.optim.AdamW(_groups(module, settings, rates or {}), weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(settings, step))
    wrapped, optimizer = accelerator.prepare(module, optimizer)
    state = _State()
    accelerator.register_for_checkpointing(schedule, state)
    if checkpoints is not None and (checkpoints / "random_states_0.pkl").exists():
        accelerator.load_state(str(checkpoints))
    started, before = time.monotonic(), state.seconds

    def check() -> None:
        with torch.no_grad():
            found = held_out(wrapped)
        state.log.append({"step": state.step, "minutes": state.seconds / 60, "held out": found, **state.taken()})
        if state.best is None or found < state.best_score:
            state.best_score, state.best = found, copy.deepcopy(accelerator.unwrap_model(wrapped).state_dict())
        if progress is not None:
            progress(state.step, state.log[-1])

    if not state.log:
        check()
    late = False
    while state.step < settings.steps and not late:
        drawn = np.random.default_rng((settings.seed, state.step))
        losses: Losses = {}
        for number in range(state.step * settings.batch, (state.step + 1) * settings.batch):
            found = lesson(wrapped, number, drawn, losses)
            summands: Iterable[torch.Tensor] = [found] if isinstance(found, torch.Tensor) else found
            for loss in summands:
                accelerator.backward(loss / settings.batch)
        accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        state.add(losses)
        state.step += 1
        state.seconds = before + time.monotonic() - started
        late = settings.minutes is not None and state.seconds > 60 * settings.minutes
        if state.step % settings.check_every == 0 or state.step == settings.steps or late:
            check()
            if checkpoints is not None:
                accelerator.save_state(str(checkpoints))
    best = state.best or accelerator.unwrap_model(wrapped).state_dict()
    return Learned(best, state.step, state.seconds / 60, tuple(state.log))


def _groups(module: torch.nn.Module, settings: LoopSettings, rates: Mapping[str, float]) -> list[dict[str, Any]]:
    """The module's parameters with their learning rates, in an order that is always the same."""
    of_children: list[dict[str, Any]] = [
        {"params": list(module.get_submodule(name).parameters()), "lr": rate} for name, rate in rates.items()
    ]
    own = {id(parameter) for group in of_children for parameter in group["params"]}
    rest = [parameter for parameter in module.parameters() if id(parameter) not in own]
    return [{"params": rest, "lr": settings.learning_rate}, *of_children]


def _rate(settings: LoopSettings, step: int) -> float:
    warm = min(1.0, (step + 1) / settings.warmup)
    if not settings.falling:
        return warm
    return warm * max(0.02, 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(1, settings.steps)))))


class _State:
    """What a checkpoint knows beside weights and optimizer."""

    def __init__(self) -> None:
        self.step = 0
        self.seconds = 0.0
        self.best: dict[str, Any] | None = None
        self.best_score = math.inf
        self.log: list[dict[str, float]] = []
        self.sums: dict[str, tuple[float, int]] = {}  # of losses since the last check

    def add(self, losses: Losses) -> None:
        for name, some in losses.items():
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = (total + sum(some), count + len(some))

    def taken(self) -> dict[str, float]:
        """The mean of each since this was asked last."""
        means = {name: total / count for name, (total, count) in self.sums.items()}
        self.sums = {}
        return means

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
