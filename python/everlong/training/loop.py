"""The loop that is gone through by whatever learns from lessons: checks on texts that are held out, checkpoints.

A part gives lessons, each a loss, and says how far it is on what is held out; all else is here. A lesson may draw what
it is about from random numbers of its own step: so a run that was cut short goes on as if it had not been.
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

Told = Callable[[int, dict[str, float]], None]
Progress = Callable[[str, int, int], None]  # what is being computed, how much of it is done, of how much


class Losses(collections.defaultdict[str, list[float]]):
    """What the lessons of a step made, by name."""

    def told(self, name: str, loss: torch.Tensor) -> torch.Tensor:
        self[name].append(float(loss.detach()))
        return loss


# A loss, or its summands one after the other: the gradient of each is taken before the next is computed. None: there is
# nothing more to learn from.
Lesson = Callable[[Any, int, np.random.Generator, Losses], torch.Tensor | Iterator[torch.Tensor] | None]


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """How long, and how fast; the subclasses say what of."""

    steps: int = 400  # of training, at most
    batch: int = 4  # lessons a step
    learning_rate: float = 2e-3  # of AdamW
    warmup: int = 10  # steps until the learning rate is reached
    falling: bool = True  # the learning rate, to a fiftieth, as a cosine does
    weight_decay: float = 0.01  # of AdamW
    clip: float | None = 1.0  # the most that the norm of a step's gradient may be
    check_every: int = 20  # steps; what came nearest on held-out texts is kept
    patience: int | None = None  # checks without a better one, then it ends
    seed: int = 0  # the same seed on the same machine: the same bits
    minutes: float | None = None  # of training, at most; what it needs is computed before
    threads: int | None = None  # of the processor; by default as many as torch takes


@dataclasses.dataclass(frozen=True)
class Learned:
    steps: int
    minutes: float
    log: tuple[dict[str, float], ...]  # at each check; the first one is of the untrained module

    @property
    def held_out(self) -> list[float]:
        """At each check."""
        return [entry["held out"] for entry in self.log]


class Kept(Protocol):
    """What a part wants a checkpoint to keep beside weights and optimizer: plain values."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


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
    kept: Kept | None = None,
    checkpoints: pathlib.Path | None = None,
    progress: Told | None = None,
) -> Learned:
    """From the last checkpoint where there is one; the same bits for one seed, machine and number of threads. Then
    the module is as it was at the best check.

    `lesson` is told its number, of which `lessons` (as many as `settings.batch`) make a step, and gives a loss; what
    that is made of it names in the dict that it is given. `held_out` says how far the module is from what is wanted, on
    texts that no lesson is about: one figure, or several of which "held out" is the one that counts; `better` says
    whether one such is better than the best so far. Both are given the module as `accelerate` wraps it, on a GPU where
    there is one and the module `moves`. `due` says behind a step whether it is time for a check, in place of
    `check_every`. `rates` are learning rates of the module's children by their names, in place of the settings'.
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
    return Learned(state.step, state.seconds / 60, tuple(state.log))


def unwrapped(module: Any) -> Any:
    """Of what `accelerate` may have wrapped."""
    return getattr(module, "module", module)


def _groups(module: torch.nn.Module, settings: LoopSettings, rates: Mapping[str, float]) -> list[dict[str, Any]]:
    """The module's parameters that learn with their learning rates, in an order that is always the same."""
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
        """The mean of each since this was asked last."""
        means = {name: total / count for name, (total, count) in self.sums.items()}
        self.sums = {}
        return means

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
