"""Train the Trimmer on cached states: nothing goes backward through the model.

What a token is worth is the logarithm of a weighted sum of its measured attention (training/attended.py). It is
measured while its block is repeated, from questions about the block, and from text that goes on. The linear map is a
ridge regression in closed form (KVzap, arXiv 2601.07891). The hidden layer is fitted to what the map leaves over.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from everlong.models.low_rank import LowRankMaps, MapSettings, mapped_layers
from everlong.models.pack import PackPart
from everlong.models.rng import isolated_rng
from everlong.parts.trimmer.model import TRIMMER, TrimmerNet, TrimmerSettings
from everlong_lab.corpora.blocks import BLOCK_TOKENS
from everlong_lab.corpora.boundaries import books_of
from everlong_lab.corpora.pairs import load_pairs
from everlong_lab.corpora.record import Record
from everlong_lab.corpora.scenarios import FAMILIES, Scenario, draw_scenarios
from everlong_lab.corpora.trimming import trim_texts
from everlong_lab.parts.trimmer.in_model import InModelTrainer, InModelTraining
from everlong_lab.training.attention_targets import TARGETS, AttendedText, attended_texts
from everlong_lab.training.loop import LoopSettings, Losses, MetricsFn, TrainingResult, learn
from everlong_lab.training.run import Run, plain, two_splits
from everlong_lab.training.states import middle_and_spread

BY_DEFAULT = True  # of `everlong train all`
_DEPTHS = (1 / 3, 0.53)  # as shares of the model's depth, where nobody names layers
_SAMPLED_ROWS = 20_000  # for center and scale


@dataclasses.dataclass(frozen=True)
class Training(LoopSettings):
    """Train the Trimmer, which says which tokens of a block are worth keeping, from the attention that they receive."""

    text: tuple[pathlib.Path, ...] = ()  # books to read; by default the shipped ones
    samples: int = 24  # number of streams of two blocks of books; half of them have planted facts
    stories: int = 12  # number of streams of FairytaleQA's stories, with the questions about them
    layers: tuple[int, ...] = ()  # layers whose states are read, by commas; by default two in the middle
    units: int = 64  # width of the hidden layer; 0: a linear map alone
    # Weights of attention, by commas: while a block is repeated, from text that goes on, from questions.
    term_weights: tuple[float, float, float] = (1.0, 20.0, 6.0)
    ridge: float = 10.0  # strength of the ridge regression, times the number of rows / 1,000
    steps: int = 400  # most training steps of the hidden layer
    batch: int = 8  # blocks in each step
    learning_rate: float = 1e-3
    warmup: int = 1  # steps until the learning rate is reached
    falling: bool = False  # whether the learning rate falls to a fiftieth, as a cosine does
    weight_decay: float = 0.1
    clip: float | None = None  # most that the norm of a step's gradient may be
    patience: int | None = 5  # checks without a lesser error before training ends
    in_model: int = 0  # steps of a second stage, whose gradient goes through the model; 0: none
    with_adapter: bool = False  # train an adapter in that stage too, which answers from what was kept
    scenarios: int = 48  # number of texts for that stage: facts in prose, changing topics, facts far apart, prose

    def __post_init__(self) -> None:
        if min(self.term_weights) < 0 or max(self.term_weights[:2]) <= 0:
            raise ValueError(
                f"term_weights are {self.term_weights}: none may be negative, and one of the first two must be above 0"
            )
        if self.with_adapter and not self.in_model:
            raise ValueError(
                "with_adapter needs in_model steps: an adapter is trained together with the Trimmer, through the model"
            )


def worth(targets: torch.Tensor, weights: Sequence[float]) -> torch.Tensor:
    """Return [T]: the log of the weighted sum of what the logarithms [T, len(TARGETS)] stand for.

    NaN means that a value was not measured; it adds nothing.
    """
    terms = targets + torch.tensor([max(weight, 1e-12) for weight in weights]).log()
    return torch.logsumexp(terms.nan_to_num(nan=-torch.inf), dim=-1)


def train(run: Run, training: Training) -> dict[str, PackPart]:
    """Run `everlong train trimmer`. The defaults are those of the shipped pack."""
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
    """Cache states and the attention to their tokens in `run.work`, train, and measure on held-out texts.

    With `in_model` the Trimmer then learns from `scenarios` through the model, with an adapter beside it if asked for;
    the result then has both. A run that was cut short goes on where it stopped. The first stage's training takes
    seconds and begins anew. Raises ValueError where there is nothing to train on or to hold out.
    """
    layers = run.layers(training.layers, _DEPTHS)
    attended = attended_texts(run.model, run.tokenizer, texts, layers, run.work / "states", progress=run.progress)
    settings = TrimmerSettings(layers, run.hidden_size, units=training.units)
    fitted, learned = fit(attended, settings, training, check=run.check)
    # Measure it as a pack gives it back: its maps have 16 bits there.
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
    question = [text.origin for text in texts if text.split == "train" for _ in text.questions]
    made = run.made(
        training,
        learned,
        {split: figures_of(trimmer, attended, split, training) for split in ("train", "fit")},
        data={
            "blocks": sum(text.blocks for text in texts if text.split == "train"),
            "planted questions": question.count("book"),
            "questions about stories": question.count("story"),
        },
        books=sorted({text.name.rpartition(" ")[0] for text in texts if text.origin == "book"}),
        stories=sorted({text.name for text in texts if text.origin == "story"}),
        **second,
    )
    parts = {TRIMMER: trimmer.part(made)}
    if adapter is not None:
        parts["adapter"] = adapter.part({key: made[key] for key in ("books", "through the model", "with")})
    return parts


@isolated_rng()
def fit(
    texts: Sequence[AttendedText], settings: TrimmerSettings, training: Training, *, check: MetricsFn | None = None
) -> tuple[TrimmerNet, TrainingResult]:
    """Train the head; one seed, machine and number of threads give the same bits.

    Raises ValueError where all texts are held out, or none.
    """
    random = np.random.default_rng(training.seed)
    torch.default_generator.manual_seed(training.seed)
    trimmer = TrimmerNet(settings)
    splits = two_splits("a Trimmer is trained on some texts", texts, lambda text: text.text.split)
    train, held_out = (_blocks(some, training) for some in splits)
    _normalise(trimmer, train, random)
    with torch.no_grad():
        train, held_out = (
            [(trimmer.normal(states), target) for states, target in blocks] for blocks in (train, held_out)
        )
    solve_ridge(trimmer, train, training.ridge)
    trimmer.linear.requires_grad_(requires_grad=False)  # the hidden layer learns what the map leaves over

    def lesson(_: Any, step: int, __: np.random.Generator, losses: Losses) -> torch.Tensor:
        chosen = random.integers(len(train), size=training.batch)
        return losses.record("loss", torch.stack([_error(trimmer, *train[at]) for at in chosen]).mean())

    def lost(_: Any) -> dict[str, float]:
        found = _found(trimmer, held_out)
        return {"held out": found["error"], "R2": found["R2"]}

    steps = training.steps if trimmer.inner is not None else 0
    settings_of_loop = dataclasses.replace(training, steps=steps)
    learned = learn(trimmer, lesson, lost, settings_of_loop, lessons=1, moves=False, progress=check)
    return trimmer.eval(), learned


def solve_ridge(trimmer: TrimmerNet, blocks: Sequence[tuple[torch.Tensor, torch.Tensor]], ridge: float) -> None:
    """Set the linear map: argmin |X w + b - y|^2 + ridge n / 1000 |w|^2 over all blocks' `normal` states and targets.

    The hidden layer is set to add nothing until it is trained.
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
    penalty[-1] = 0  # the constant has no penalty
    solved = torch.linalg.solve(gram + penalty.diag(), moment)
    with torch.no_grad():
        trimmer.linear.weight.copy_(solved[None, :-1])
        trimmer.linear.bias.copy_(solved[-1:])
        if trimmer.outer is not None:
            trimmer.outer.weight.zero_()
            trimmer.outer.bias.zero_()


def figures_of(trimmer: TrimmerNet, texts: Sequence[AttendedText], split: str, training: Training) -> dict[str, float]:
    """Return the figures on a split's blocks: R^2, and for each kind of attention the share of the best eighth.

    That is the share that the eighth of a block's tokens with the highest scores receives.
    """
    own = [text for text in texts if text.text.split == split]
    with torch.no_grad():
        blocks = [(trimmer.normal(states), target) for states, target in _blocks(own, training)]
    return {**_found(trimmer, blocks), **kept_shares(trimmer, own)} if own else {}


@torch.no_grad()
def kept_shares(trimmer: TrimmerNet, texts: Sequence[AttendedText], count: int = BLOCK_TOKENS // 8) -> dict[str, float]:
    """Return for each kind of attention to a block the share that the `count` highest-scoring tokens receive."""
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
    """Yield states [BLOCK_TOKENS, width] and targets [BLOCK_TOKENS, len(TARGETS)] of each block."""
    for text in texts:
        yield from zip(torch.split(text.states, BLOCK_TOKENS), torch.split(text.targets, BLOCK_TOKENS), strict=True)


def _blocks(texts: Sequence[AttendedText], training: Training) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return states [BLOCK_TOKENS, width] and what each token is worth [BLOCK_TOKENS], by block."""
    return [(states.float(), worth(targets, training.term_weights)) for states, targets in _of_blocks(texts)]


def _normalise(
    trimmer: TrimmerNet, blocks: Sequence[tuple[torch.Tensor, torch.Tensor]], random: np.random.Generator
) -> None:
    """Set center and scale of each number from the texts, by middle and spread, as a few numbers have another size."""
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
