"""Trains the trigger on cached states (parts/trigger): a weighted cross entropy over places of texts.

A place where a topic ends is 1, one where a turn or paragraph ends a little more than 0 (so that, where no topic ends
for long, blocks end there rather than anywhere), any other place 0. All of the former are learned from, of the others a
share. The model stays frozen: nothing of it is computed here.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from everlong.corpora.boundaries import TOPICS, CutKind, Origin
from everlong.parts.trigger.model import Trigger, TriggerSettings
from everlong.training.read_states import ReadStates

_SAMPLED_ROWS = 20_000  # for center and scale
_OTHER = "other"  # a place within a sentence or between two of a paragraph

# How much of a topic's end a place is, and how much each counts in the loss: there are few splices.
_TARGETS: dict[CutKind, float] = {kind: 1.0 for kind in TOPICS} | {"turn": 0.05, "paragraph": 0.05}
_WEIGHTS: dict[CutKind, float] = {"splice": 6.0, "author": 8.0, "chapter": 3.0, "shift": 1.5}


@dataclasses.dataclass(frozen=True)
class TriggerTraining:
    """How it is done; the defaults are those of the shipped pack."""

    steps: int = 600
    batch: int = 768  # places
    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    dropout: float = 0.4
    other_share: float = 0.05  # of places where nothing ends
    check_every: int = 25  # steps; the weights of the least loss on held-out texts are kept
    patience: int = 8  # checks without a lesser loss, then it ends
    seed: int = 0
    minutes: float | None = None  # no step begins later
    threads: int | None = None


@dataclasses.dataclass(frozen=True)
class TrainedTrigger:
    trigger: Trigger
    steps: int
    minutes: float
    log: tuple[dict[str, float], ...]  # at each check


@dataclasses.dataclass(frozen=True)
class _Places:
    """What is learned from, one row a place."""

    inputs: torch.Tensor  # [n, width]
    targets: torch.Tensor  # [n]
    weights: torch.Tensor  # [n]
    kinds: npt.NDArray[np.str_]
    origins: npt.NDArray[np.str_]


def train_trigger(
    states: ReadStates,
    settings: TriggerSettings,
    training: TriggerTraining,
    *,
    progress: Callable[[int, dict[str, float]], None] | None = None,
) -> TrainedTrigger:
    """The same bits for one seed, machine and number of threads. ValueError where all texts are held out, or none."""
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    random = np.random.default_rng(training.seed)
    torch.manual_seed(training.seed)
    trigger = Trigger(settings, dropout=training.dropout)
    _normalise(trigger, states, random)
    train, fit = (_places(trigger, states, split, training.other_share, random) for split in ("train", "fit"))
    if len(train.targets) == 0 or len(fit.targets) == 0:
        raise ValueError("a trigger is trained on some texts and stopped by others; one of the two has no places")
    optimizer = torch.optim.AdamW(trigger.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay)
    best, least, late, log = copy.deepcopy(trigger.state_dict()), np.inf, 0, list[dict[str, float]]()
    started, step = time.monotonic(), 0
    while step < training.steps and late < training.patience:
        rows = torch.from_numpy(random.integers(len(train.targets), size=training.batch))
        loss = _loss(trigger, train, rows)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step += 1
        minutes = (time.monotonic() - started) / 60
        out_of_time = training.minutes is not None and minutes > training.minutes
        if step % training.check_every == 0 or step == training.steps or out_of_time:
            trigger.eval()
            with torch.no_grad():
                held_out = float(_loss(trigger, fit, torch.arange(len(fit.targets))))
                log.append({"step": step, "loss": float(loss.detach()), "held out": held_out, **_found(trigger, fit)})
            trigger.train()
            if progress is not None:
                progress(step, log[-1])
            late += 1
            if held_out < least:
                best, least, late = copy.deepcopy(trigger.state_dict()), held_out, 0
        if out_of_time:
            break
    trigger.load_state_dict(best)
    return TrainedTrigger(trigger.eval(), step, (time.monotonic() - started) / 60, tuple(log))


def average_precision(scores: npt.NDArray[np.floating], right: npt.NDArray[np.bool_]) -> float:
    """Mean, over the right ones, of the share of right ones among all that score as high; 0 where none is right."""
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], np.cumsum(right[order])
    last = np.searchsorted(-ranked, -ranked, side="right")  # equal scores share a rank
    precision = hits[last - 1] / last
    return float(precision[right[order]].mean()) if right.any() else 0.0


def figures_of(trigger: Trigger, states: ReadStates, split: str) -> dict[str, float]:
    """Average precision among the ends of turns and paragraphs of a split's texts, by origin."""
    return _found(trigger, _places(trigger, states, split, 0.0, np.random.default_rng(0)))


def _loss(trigger: Trigger, places: _Places, rows: torch.Tensor) -> torch.Tensor:
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        trigger.logits(places.inputs[rows].float()), places.targets[rows], reduction="none"
    )
    return (losses * places.weights[rows]).mean()


def _normalise(trigger: Trigger, states: ReadStates, random: np.random.Generator) -> None:
    """Each number centred and scaled, as the texts have it; by what lies in between, for a few are of another size."""
    chosen = np.sort(random.choice(len(states.states), min(_SAMPLED_ROWS, len(states.states)), replace=False))
    sample = states.floats(chosen).float().sort(dim=0).values
    low, middle, high = (sample[int(share * (len(sample) - 1))] for share in (0.1587, 0.5, 0.8413))
    trigger.center.copy_(middle)
    trigger.scale.copy_(2 / (high - low).clamp(min=1e-4))


@torch.no_grad()
def _places(
    trigger: Trigger, states: ReadStates, split: str, other_share: float, random: np.random.Generator
) -> _Places:
    inputs, kinds, origins = [], list[str](), list[Origin]()
    for text in states.texts:
        if text.text.split != split or text.text.origin == "book":
            continue
        of_text = trigger.inputs(trigger.normal(states.of(text)))
        kind_at: dict[int, str] = {at: cut.kind for at, cut in zip(text.cuts, text.text.cuts, strict=True)}
        drawn = np.nonzero(random.random(len(of_text)) < other_share)[0] + 1
        chosen = [at for at in sorted({*kind_at, *drawn.tolist()}) if 1 <= at <= len(of_text)]
        inputs.append(of_text[torch.tensor(chosen, dtype=torch.int64) - 1].to(torch.bfloat16))
        kinds.extend(kind_at.get(at, _OTHER) for at in chosen)
        origins.extend([text.text.origin] * len(chosen))
    return _Places(
        torch.cat(inputs) if inputs else torch.zeros(0, 0),
        torch.tensor([_TARGETS.get(kind, 0.0) for kind in kinds]),  # type: ignore[call-overload]
        torch.tensor([_WEIGHTS.get(kind, 1.0) for kind in kinds]),  # type: ignore[call-overload]
        np.asarray(kinds, dtype=np.str_),
        np.asarray(origins, dtype=np.str_),
    )


@torch.no_grad()
def _found(trigger: Trigger, places: _Places) -> dict[str, float]:
    if len(places.inputs) == 0:
        return {}
    scores = torch.cat([trigger.logits(rows.float()) for rows in torch.split(places.inputs, 4096)]).numpy()
    found = {}
    for origin in sorted(set(places.origins.tolist())):
        among = (places.origins == origin) & (places.kinds != _OTHER)
        found[origin] = average_precision(scores[among], np.isin(places.kinds[among], TOPICS))
    return found
