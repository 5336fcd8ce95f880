"""Trains the Trimmer on cached states (parts/trimmer), stage 0: nothing goes backward through the model.

What a token is worth is the logarithm of a weighted sum of what was measured of it (training/attended.py): the
attention that it receives while its block is repeated, from questions about the block, and from text that goes on. The
linear map is a ridge in closed form (KVzap, arXiv 2601.07891), the hidden layer is fitted to what the map leaves over.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from everlong.corpora.attended import trim_texts
from everlong.corpora.blocks import BLOCK_TOKENS
from everlong.corpora.boundaries import books_of
from everlong.corpora.pairs import load_pairs
from everlong.corpora.record import Record
from everlong.corpora.scenarios import FAMILIES, Scenario, draw_scenarios
from everlong.models.low_rank import LowRankMaps, MapSettings, mapped_layers
from everlong.models.pack import PackPart
from everlong.parts.trimmer.in_model import InModelTrainer, InModelTraining
from everlong.parts.trimmer.model import TRIMMER, TrimmerNet, TrimmerSettings
from everlong.training.attended import TARGETS, AttendedText, attended_texts
from everlong.training.loop import Learned, LoopSettings, Losses, Told, learn
from everlong.training.run import Run, plain, two_splits
from everlong.training.states import middle_and_spread

BY_DEFAULT = True  # of `everlong train all`
_DEPTHS = (1 / 3, 0.53)  # shares of the model's, whose states are read where nobody names layers
_SAMPLED_ROWS = 20_000  # for center and scale


@dataclasses.dataclass(frozen=True)
class Training(LoopSettings):
    """The Trimmer, which says what tokens of a block are worth keeping: from what they are attended by."""

    text: tuple[pathlib.Path, ...] = ()  # books that are read; by default those that are shipped
    samples: int = 24  # streams of two blocks of books, half of these with planted facts
    stories: int = 12  # streams of stories of FairytaleQA, with the questions about them
    layers: tuple[int, ...] = ()  # whose states are read, by commas; by default some in the middle
    units: int = 64  # of the hidden layer; 0: a linear map alone
    # What attention counts, by commas: while a block is repeated, from text that goes on, from questions.
    weights: tuple[float, float, float] = (1.0, 20.0, 6.0)
    ridge: float = 10.0  # times the number of rows / 1,000
    steps: int = 400  # of the hidden layer, at most
    batch: int = 8  # blocks a step
    learning_rate: float = 1e-3
    warmup: int = 1  # steps until the learning rate is reached
    falling: bool = False  # the learning rate, to a fiftieth, as a cosine does
    weight_decay: float = 0.1
    clip: float | None = None  # the most that the norm of a step's gradient may be
    patience: int | None = 5  # checks without a lesser error, then it ends
    in_model: int = 0  # steps of a second stage, whose gradient goes through the model; 0: none
    with_adapter: bool = False  # of that stage: an adapter, too, that answers from what was kept
    scenarios: int = 48  # texts of that stage: facts in prose, topics that change, facts far apart, prose

    def __post_init__(self) -> None:
        if min(self.weights) < 0 or max(self.weights[:2]) <= 0:
            raise ValueError(
                f"weights are {self.weights}: none may be negative, and one of the first two must be more than 0"
            )
        if self.with_adapter and not self.in_model:
            raise ValueError(
                "an adapter learns with a Trimmer that learns through the model: that takes steps, in_model"
            )


def worth(targets: torch.Tensor, weights: Sequence[float]) -> torch.Tensor:
    """[T] of logarithms [T, len(TARGETS)]: log of their weighted sum; what is NaN was not measured and adds nothing."""
    terms = targets + torch.tensor([max(weight, 1e-12) for weight in weights]).log()
    return torch.logsumexp(terms.nan_to_num(nan=-torch.inf), dim=-1)


def train(run: Run, training: Training) -> dict[str, PackPart]:
    """What `everlong train trimmer` does; the defaults are those of the shipped pack."""
    pairs = load_pairs(["fairytale"]) if training.stories else None
    books = books_of(training.text)
    texts = trim_texts(
        run.tokenizer, books, pairs, samples=training.samples, stories=training.stories, seed=training.seed
    )
    scenarios: Sequence[Scenario] = ()
    in_model: InModelTraining | None = None
    if training.in_model:
        scenarios = draw_scenarios(run.tokenizer, books, training.scenarios, seed=training.seed)
        in_model = InModelTraining(steps=training.in_model, minutes=training.minutes, seed=training.seed)
    return train_on(run, texts, training, scenarios, in_model)


def train_on(
    run: Run,
    texts: Sequence[Record],
    training: Training,
    scenarios: Sequence[Scenario] = (),
    in_model: InModelTraining | None = None,
) -> dict[str, PackPart]:
    """Cache states and what their tokens are attended by in `work`, train, measure on texts that were held out.

    With `in_model` it then learns from `scenarios` through the model, an adapter beside it if asked for: there are both
    then. What was cut short goes on where it stopped; the first stage's training takes seconds and begins anew.
    ValueError where there is nothing to train on or to hold out.
    """
    layers = run.layers(training.layers, _DEPTHS)
    attended = attended_texts(run.model, run.tokenizer, texts, layers, run.work / "states", progress=run.progress)
    settings = TrimmerSettings(layers, run.hidden_size, units=training.units)
    fitted, learned = fit(attended, settings, training, check=run.check)
    # As a pack gives it back: its maps are in 16 bits there.
    trimmer = TrimmerNet.of_part(fitted.part({}))
    second: dict[str, Any] = {}
    adapter: LowRankMaps | None = None
    if in_model is not None:
        if training.with_adapter:
            adapter = LowRankMaps(MapSettings(), mapped_layers(run.model), seed=in_model.seed)
        trainer = InModelTrainer(run.model, scenarios, in_model, adapter, run.work / "in-model", run.check)
        refined, refining = trainer.train(trimmer)
        trimmer = TrimmerNet.of_part(refined.part({}))
        second["through the model"] = {
            "training": plain(in_model),
            "scenarios": {family: sum(one.origin == family for one in scenarios) for family in FAMILIES},
            "steps": refining.steps,
            "minutes": round(refining.minutes, 2),
            "log": list(refining.log),
        }
    asked = [text.origin for text in texts if text.split == "train" for _ in text.questions]
    made = run.made(
        training,
        learned,
        {split: figures_of(trimmer, attended, split, training) for split in ("train", "fit")},
        data={
            "blocks": sum(text.blocks for text in texts if text.split == "train"),
            "planted questions": asked.count("book"),
            "questions about stories": asked.count("story"),
        },
        books=sorted({text.name.rpartition(" ")[0] for text in texts if text.origin == "book"}),
        stories=sorted({text.name for text in texts if text.origin == "story"}),
        **second,
    )
    parts = {TRIMMER: trimmer.part(made)}
    if adapter is not None:
        parts["adapter"] = adapter.part({key: made[key] for key in ("books", "through the model", "with")})
    return parts


def fit(
    texts: Sequence[AttendedText], settings: TrimmerSettings, training: Training, *, check: Told | None = None
) -> tuple[TrimmerNet, Learned]:
    """The same bits for one seed, machine and number of threads. ValueError where all texts are held out, or none."""
    random = np.random.default_rng(training.seed)
    torch.manual_seed(training.seed)
    trimmer = TrimmerNet(settings)
    splits = two_splits("a Trimmer is trained on some texts", texts, lambda text: text.text.split)
    train, held_out = (_blocks(some, training) for some in splits)
    _normalise(trimmer, train, random)
    with torch.no_grad():
        train, held_out = (
            [(trimmer.normal(states), target) for states, target in blocks] for blocks in (train, held_out)
        )
    solve_ridge(trimmer, train, training.ridge)
    trimmer.linear.requires_grad_(requires_grad=False)  # what it leaves over is learned by the hidden layer

    def lesson(_: Any, step: int, __: np.random.Generator, said: Losses) -> torch.Tensor:
        chosen = random.integers(len(train), size=training.batch)
        return said.told("loss", torch.stack([_error(trimmer, *train[at]) for at in chosen]).mean())

    def lost(_: Any) -> dict[str, float]:
        found = _found(trimmer, held_out)
        return {"held out": found["error"], "R2": found["R2"]}

    steps = training.steps if trimmer.inner is not None else 0
    settings_of_loop = dataclasses.replace(training, steps=steps)
    learned = learn(trimmer, lesson, lost, settings_of_loop, lessons=1, moves=False, progress=check)
    return trimmer.eval(), learned


def solve_ridge(trimmer: TrimmerNet, blocks: Sequence[tuple[torch.Tensor, torch.Tensor]], ridge: float) -> None:
    """Set the linear map: argmin |X w + b - y|^2 + ridge n / 1000 |w|^2 over all blocks' `normal` states and targets.

    The hidden layer adds nothing to it, until it is trained.
    """
    width = blocks[0][0].shape[-1]
    gram, moment = torch.zeros(width + 1, width + 1, dtype=torch.float64), torch.zeros(width + 1, dtype=torch.float64)
    rows = 0
    for states, target in blocks:
        ones = torch.cat([states, states.new_ones(len(states), 1)], dim=-1)
        gram += (ones.T @ ones).double()
        moment += (ones.T @ target).double()
        rows += len(states)
    penalty = torch.full((width + 1,), ridge * rows / 1000, dtype=torch.float64)
    penalty[-1] = 0  # the constant
    solved = torch.linalg.solve(gram + penalty.diag(), moment)
    with torch.no_grad():
        trimmer.linear.weight.copy_(solved[None, :-1])
        trimmer.linear.bias.copy_(solved[-1:])
        if trimmer.outer is not None:
            trimmer.outer.weight.zero_()
            trimmer.outer.bias.zero_()


def figures_of(trimmer: TrimmerNet, texts: Sequence[AttendedText], split: str, training: Training) -> dict[str, float]:
    """On a split's blocks: R^2, and of each kind of attention the share that an eighth of a block's tokens receive,
    those that are worth most.
    """
    own = [text for text in texts if text.text.split == split]
    with torch.no_grad():
        blocks = [(trimmer.normal(states), target) for states, target in _blocks(own, training)]
    return {**_found(trimmer, blocks), **kept_shares(trimmer, own)} if own else {}


@torch.no_grad()
def kept_shares(trimmer: TrimmerNet, texts: Sequence[AttendedText], count: int = BLOCK_TOKENS // 8) -> dict[str, float]:
    """Of each kind of attention to a block, the share that `count` tokens receive: those that score highest."""
    shares: dict[str, list[float]] = {}
    for states, targets in _of_blocks(texts):
        scores = trimmer.scores(states)
        top = torch.topk(scores, min(count, len(scores))).indices
        for at, name in enumerate(TARGETS):
            attention = targets[:, at].exp()
            if not attention.isnan().any():
                shares.setdefault(name, []).append(float(attention[top].sum() / attention.sum()))
    return {name: float(np.mean(of)) for name, of in shares.items()}


def _of_blocks(texts: Sequence[AttendedText]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """States [BLOCK_TOKENS, width] and targets [BLOCK_TOKENS, len(TARGETS)] of each block."""
    for text in texts:
        yield from zip(torch.split(text.states, BLOCK_TOKENS), torch.split(text.targets, BLOCK_TOKENS), strict=True)


def _blocks(texts: Sequence[AttendedText], training: Training) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """States [BLOCK_TOKENS, width] and what each token is worth [BLOCK_TOKENS]."""
    return [(states.float(), worth(targets, training.weights)) for states, targets in _of_blocks(texts)]


def _normalise(
    trimmer: TrimmerNet, blocks: Sequence[tuple[torch.Tensor, torch.Tensor]], random: np.random.Generator
) -> None:
    """Each number centred and scaled, as the texts have it; by what lies in between, for a few are of another size."""
    states = torch.cat([states for states, _ in blocks])
    chosen: npt.NDArray[np.int64] = np.sort(random.choice(len(states), min(_SAMPLED_ROWS, len(states)), replace=False))
    center, spread = middle_and_spread(states[torch.from_numpy(chosen)])
    trimmer.center.copy_(center)
    trimmer.scale.copy_(1 / spread)


def _error(trimmer: TrimmerNet, normal: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (trimmer.logits(normal) - target).square().mean()


@torch.no_grad()
def _found(trimmer: TrimmerNet, blocks: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    error = float(torch.stack([_error(trimmer, *block) for block in blocks]).mean())
    every = torch.cat([target for _, target in blocks])
    return {"error": error, "R2": 1 - error / float(every.var(correction=0))}
