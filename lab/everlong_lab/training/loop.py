"""The training loop of every part that learns from lessons, with checks on held-out texts and checkpoints.

A part gives lessons, each a loss, and measures itself on what is held out; all else is here. A lesson may draw its
subject from random numbers of its own step, so a run that was cut short goes on as if it had not been.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import importlib
import math
import operator
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from everlong.models.rng import isolated_rng

MetricsFn = Callable[[int, dict[str, float]], None]
Progress = Callable[[str, int, int], None]  # what is being computed, how much of it is done, of how much


class Losses(collections.defaultdict[str, list[float]]):
    """The losses of a step's lessons, by name."""

    def record(self, name: str, loss: torch.Tensor) -> torch.Tensor:
        self[name].append(float(loss.detach()))
        return loss


# A loss, or its summands one after the other: the gradient of each is taken before the next is computed. None: there is
# nothing more to learn from.
Lesson = Callable[[Any, int, np.random.Generator, Losses], torch.Tensor | Iterator[torch.Tensor] | None]


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """How long and how fast training goes; the subclasses add what is trained."""

    steps: int = 400  # most training steps
    batch: int = 4  # lessons in each step
    learning_rate: float = 2e-3  # learning rate of AdamW
    warmup: int = 10  # steps until the learning rate is reached
    falling: bool = True  # whether the learning rate falls to a fiftieth, as a cosine does
    weight_decay: float = 0.01  # weight decay of AdamW
    clip: float | None = 1.0  # most that the norm of a step's gradient may be
    check_every: int = 20  # steps between checks; the best result on held-out texts is kept
    patience: int | None = None  # checks without a better one before training ends
    seed: int = 0  # seed; the same seed on the same machine gives the same bits
    minutes: float | None = None  # most minutes of training; preparing the data comes before and does not count
    threads: int | None = None  # number of processor threads; by default as many as torch takes


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    steps: int
    minutes: float
    log: tuple[dict[str, float], ...]  # one entry a check; the first one is of the untrained module

    @property
    def held_out(self) -> list[float]:
        """The figure of each check."""
        return [entry["held out"] for entry in self.log]


class BestState(Protocol):
    """What a checkpoint keeps for a part beside weights and optimizer: plain values."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


@isolated_rng()  # a checkpoint brings the states of all generators
def learn(
    module: torch.nn.Module,
    lesson: Lesson,
    held_out: Callable[[Any], float | dict[str, float]],
    settings: LoopSettings,
    *,
    lessons: int | None = None,
    due: Callable[[], bool] | None = None,
    better: Callable[[float, float], bool] = operator.lt,
    rates: Mapping[str, float] | None = None,
    moves: bool = True,
    kept: BestState | None = None,
    checkpoints: pathlib.Path | None = None,
    progress: MetricsFn | None = None,
) -> TrainingResult:
    """Train the module, from the last checkpoint where there is one, and leave it as it was at the best check.

    One seed, machine and number of threads give the same bits.

    `lesson` gets its number and returns a loss; `lessons` of them (as many as `settings.batch`) make a step. It names
    the loss's terms in the dict that it gets. `held_out` measures the module on texts that no lesson is about. It
    returns one figure, or several, of which "held out" is the one that counts. `better` says whether one such figure is
    better than the best so far. Both get the module as `accelerate` wraps it, on a GPU where there is one and the
    module `moves`. `due` says after a step whether it is time for a check, in place of `check_every`. `rates` are
    learning rates of the module's children by name, in place of the settings' rate.
    """
    accelerate = importlib.import_module("accelerate")  # the extra "train"
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    accelerator = accelerate.Accelerator(cpu=not torch.cuda.is_available())
    optimizer = torch.optim.AdamW(_groups(module, settings, rates or {}), weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(settings, step))
    wrapped, optimizer = accelerator.prepare(module, optimizer, device_placement=[moves, moves])
    state = _State()
    accelerator.register_for_checkpointing(schedule, state, *([] if kept is None else [kept]))
    if checkpoints is not None and (checkpoints / "random_states_0.pkl").exists():
        accelerator.load_state(str(checkpoints))
    started, before = time.monotonic(), state.seconds

    def check() -> None:
        before_it = wrapped.training
        wrapped.eval()
        with torch.no_grad():
            found = held_out(wrapped)
        wrapped.train(before_it)
        figures = found if isinstance(found, dict) else {"held out": found}
        state.log.append({"step": state.step, "minutes": state.seconds / 60, **figures, **state.taken()})
        state.late += 1
        if state.best is None or better(figures["held out"], state.best_score):
            state.best_score, state.late = figures["held out"], 0
            state.best = copy.deepcopy(accelerator.unwrap_model(wrapped).state_dict())
        if progress is not None:
            progress(state.step, state.log[-1])

    if not state.log:
        check()
    count, over = lessons or settings.batch, False
    while state.step < settings.steps and not over:
        drawn = np.random.default_rng((settings.seed, state.step))
        losses = Losses(list)
        for number in range(state.step * count, (state.step + 1) * count):
            found = lesson(wrapped, number, drawn, losses)
            if found is None:
                over = True
                break
            summands: Iterable[torch.Tensor] = [found] if isinstance(found, torch.Tensor) else found
            for loss in summands:
                accelerator.backward(loss / count)
        if over:
            break
        if settings.clip is not None:
            accelerator.clip_grad_norm_(wrapped.parameters(), settings.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        state.add(losses)
        state.step += 1
        state.seconds = before + time.monotonic() - started
        late = settings.minutes is not None and state.seconds > 60 * settings.minutes
        timely = state.step % settings.check_every == 0 if due is None else due()
        if timely or late or state.step == settings.steps:
            check()
            if checkpoints is not None:
                accelerator.save_state(str(checkpoints))
        over = late or (settings.patience is not None and state.late >= settings.patience)
    module.load_state_dict(state.best or {})
    return TrainingResult(state.step, state.seconds / 60, tuple(state.log))


def unwrapped(module: Any) -> Any:
    """Return the module that `accelerate` may have wrapped."""
    return getattr(module, "module", module)


def _groups(module: torch.nn.Module, settings: LoopSettings, rates: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the learning parameters with their learning rates, in an order that is always the same."""
    of_children: list[dict[str, Any]] = [
        {"params": list(module.get_submodule(name).parameters()), "lr": rate} for name, rate in rates.items()
    ]
    own = {id(parameter) for group in of_children for parameter in group["params"]}
    rest = [parameter for parameter in module.parameters() if parameter.requires_grad and id(parameter) not in own]
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
        self.best_score = math.nan
        self.late = 0  # checks since the best
        self.log: list[dict[str, float]] = []
        self.sums: dict[str, tuple[float, int]] = {}  # of losses since the last check

    def add(self, losses: Losses) -> None:
        for name, some in losses.items():
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = (total + sum(some), count + len(some))

    def taken(self) -> dict[str, float]:
        """Return the mean of each loss since the last call."""
        means = {name: total / count for name, (total, count) in self.sums.items()}
        self.sums = {}
        return means

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
