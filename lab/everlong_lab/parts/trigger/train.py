"""Train the trigger on cached states: a weighted cross entropy over places of texts.

A place where a topic ends has the target 1. A place where a turn or paragraph ends has a little more than 0, so that
blocks end there rather than anywhere if no topic ends for long. Any other place has 0. All ends are learned from, and a
share of the other places. The model stays frozen, and nothing of it is computed here.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from everlong.models.pack import PackPart
from everlong.models.rng import isolated_rng
from everlong.parts.trigger.model import TRIGGER, TriggerNet, TriggerSettings
from everlong.parts.trigger.runtime import BoundaryPredictions, stored_predictions
from everlong.text.boundaries import TextBoundaries
from everlong_lab.corpora.boundaries import TOPICS, CutKind, CutText, Origin, books_of, trigger_texts
from everlong_lab.training.loop import LoopSettings, Losses, MetricsFn, TrainingResult, learn
from everlong_lab.training.read_states import ReadStates, read_states
from everlong_lab.training.run import Run
from everlong_lab.training.states import middle_and_spread

BY_DEFAULT = True  # of `everlong train all`
_DEPTHS = (0.43,)  # as shares of the model's depth, where nobody names layers
_SAMPLED_ROWS = 20_000  # for center and scale
_OTHER = "other"  # a place within a sentence, or between two sentences of a paragraph

# How much of a topic's end a place is, and its weight in the loss: splices are few.
_TARGETS: dict[CutKind, float] = {kind: 1.0 for kind in TOPICS} | {"turn": 0.05, "paragraph": 0.05}
_WEIGHTS: dict[CutKind, float] = {"splice": 6.0, "author": 8.0, "chapter": 3.0, "shift": 1.5}


@dataclasses.dataclass(frozen=True)
class Training(LoopSettings):
    """Train the trigger, by which blocks end where a topic ends, on joined pieces of books and on dialogues."""

    # Books, author--title.txt, whose pieces are joined; by default the shipped ones.
    text: tuple[pathlib.Path, ...] = ()
    splices: int = 36  # number of joined texts, of six pieces of books each
    dialogues: bool = True  # learn from the shipped dialogues (TIAGE), too
    layers: tuple[int, ...] = ()  # layers whose states are read, by commas; by default one in the middle
    steps: int = 600  # most training steps
    batch: int = 768  # places in each step
    warmup: int = 1  # steps until the learning rate is reached
    falling: bool = False  # whether the learning rate falls to a fiftieth, as a cosine does
    weight_decay: float = 0.1
    clip: float | None = None  # most that the norm of a step's gradient may be
    dropout: float = 0.4  # dropout of the head's inputs and hidden layer
    other_share: float = 0.05  # share of the places where nothing ends to learn from
    check_every: int = 25  # steps between checks; the weights of the least loss on held-out texts are kept
    patience: int | None = 8  # checks without a lesser loss before training ends


@dataclasses.dataclass(frozen=True)
class _Places:
    """Places to learn from, one row each."""

    inputs: torch.Tensor  # [n, width]
    targets: torch.Tensor  # [n]
    weights: torch.Tensor  # [n]
    kinds: npt.NDArray[np.str_]
    origins: npt.NDArray[np.str_]


def train(run: Run, training: Training) -> dict[str, PackPart]:
    """Run `everlong train trigger`. The defaults are those of the shipped pack."""
    texts = trigger_texts(
        books_of(training.text), splices=training.splices, with_dialogues=training.dialogues, seed=training.seed
    )
    return train_on(run, texts, training)


def train_on(run: Run, texts: Sequence[CutText], training: Training) -> dict[str, PackPart]:
    """Cache states in `run.work`, train, measure on held-out texts, and keep the calibration texts.

    The calibration texts are those of origin "book". Reading that was cut short goes on where it stopped; training
    takes minutes and begins anew. Raises ValueError where there are no such texts, or none to train on or to hold out.
    """
    layers = run.layers(training.layers, _DEPTHS)
    books = [at for at, text in enumerate(texts) if text.origin == "book"]
    if not books:
        raise ValueError("thresholds are calibrated on whole books, and there are none")
    states = read_states(run.model, run.tokenizer, texts, layers, run.work / "states", progress=run.progress)
    fitted, learned = fit(states, TriggerSettings(layers, run.hidden_size), training, check=run.check)
    # Measure it as a pack gives it back: its maps have 16 bits there.
    trigger = TriggerNet.of_part(fitted.part({}))
    boundaries = TextBoundaries(run.tokenizer)
    kept = []
    for text in (states.texts[at] for at in books):
        ends = [(end, kind) for end, kind in boundaries.find(text.ids) if kind in ("sentence", "paragraph")]
        with torch.no_grad():
            kept.append(BoundaryPredictions(trigger.probabilities(states.of(text)).numpy(), ends))
    kinds = [cut.kind for text in texts if text.split == "train" for cut in text.cuts]
    splits = sorted({text.split for text in texts})
    made = run.made(
        training,
        learned,
        {split: figures_of(trigger, states, split) for split in splits},
        data={kind: kinds.count(kind) for kind in sorted(set(kinds))},
        books=sorted({name for text in texts for name in text.sources}),
        tokens=len(states.states),
    )
    return {TRIGGER: trigger.part_with(stored_predictions(kept), made)}


@isolated_rng()
def fit(
    states: ReadStates, settings: TriggerSettings, training: Training, *, check: MetricsFn | None = None
) -> tuple[TriggerNet, TrainingResult]:
    """Train the head; one seed, machine and number of threads give the same bits.

    Raises ValueError where all texts are held out, or none.
    """
    random = np.random.default_rng(training.seed)
    torch.default_generator.manual_seed(training.seed)
    trigger = TriggerNet(settings, dropout=training.dropout)
    _normalise(trigger, states, random)
    train, held_out = (_places(trigger, states, split, training.other_share, random) for split in ("train", "fit"))
    if len(train.targets) == 0 or len(held_out.targets) == 0:
        raise ValueError("a trigger is trained on some texts and stopped by others; one of the two has no places")

    def lesson(_: Any, step: int, __: np.random.Generator, losses: Losses) -> torch.Tensor:
        rows = torch.from_numpy(random.integers(len(train.targets), size=training.batch))
        return losses.record("loss", _loss(trigger, train, rows))

    def lost(_: Any) -> dict[str, float]:
        loss = float(_loss(trigger, held_out, torch.arange(len(held_out.targets))))
        return {"held out": loss, **_found(trigger, held_out)}

    learned = learn(trigger, lesson, lost, training, lessons=1, moves=False, progress=check)
    return trigger.eval(), learned


def average_precision(scores: npt.NDArray[np.floating], right: npt.NDArray[np.bool_]) -> float:
    """Return the mean precision at each right place, over all that score at least as high; 0 where none is right."""
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], np.cumsum(right[order])
    last = np.searchsorted(-ranked, -ranked, side="right")  # equal scores share a rank
    precision = hits[last - 1] / last
    return float(precision[right[order]].mean()) if right.any() else 0.0


def figures_of(trigger: TriggerNet, states: ReadStates, split: str) -> dict[str, float]:
    """Return the average precision among the ends of turns and paragraphs of a split's texts, by origin."""
    return _found(trigger, _places(trigger, states, split, 0.0, np.random.default_rng(0)))


def _loss(trigger: TriggerNet, places: _Places, rows: torch.Tensor) -> torch.Tensor:
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        trigger.logits(places.inputs[rows].float()), places.targets[rows], reduction="none"
    )
    return (losses * places.weights[rows]).mean()


def _normalise(trigger: TriggerNet, states: ReadStates, random: np.random.Generator) -> None:
    """Set center and scale of each number from the texts, by middle and spread, as a few numbers have another size."""
    chosen = np.sort(random.choice(len(states.states), min(_SAMPLED_ROWS, len(states.states)), replace=False))
    center, spread = middle_and_spread(states.floats(chosen).float())
    trigger.center.copy_(center)
    trigger.scale.copy_(1 / spread)


@torch.no_grad()
def _places(
    trigger: TriggerNet, states: ReadStates, split: str, other_share: float, random: np.random.Generator
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
def _found(trigger: TriggerNet, places: _Places) -> dict[str, float]:
    if len(places.inputs) == 0:
        return {}
    scores = torch.cat([trigger.logits(rows.float()) for rows in torch.split(places.inputs, 4096)]).numpy()
    found = {}
    for origin in sorted(set(places.origins.tolist())):
        among = (places.origins == origin) & (places.kinds != _OTHER)
        found[origin] = average_precision(scores[among], np.isin(places.kinds[among], TOPICS))
    return found
