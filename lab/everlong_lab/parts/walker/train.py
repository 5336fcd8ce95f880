"""Train the Walker on chains of facts planted in books (corpora/walks.py).

Training begins with imitation. Of the ways from where a walk stands, those are right that bring a missing gold page, by
the shortest paths to all of them. Ending is right once none is missing. First a teacher walks, then the policy itself,
and it is told what would have been right where it went (DAgger; Ross, Gordon and Bagnell, AISTATS 2011). REINFORCE
follows (Williams, 1992). The reward is the share of gold pages that were loaded, plus 1 if all were, minus lambda a
load. The baseline is the mean of the other walks for the same question.
"""

from __future__ import annotations

import dataclasses
import operator
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch

import everlong._core as _core
from everlong.models.pack import PackPart
from everlong.models.rng import isolated_rng
from everlong.parts.walker.model import FEATURES, WALKER, WalkerNet, WalkerSettings
from everlong_lab.corpora.boundaries import books_of
from everlong_lab.corpora.record import Record
from everlong_lab.corpora.walks import draw_walk_texts
from everlong_lab.parts.walker.memories import (
    NEIGHBOURS,
    PAGE_TOKENS,
    WalkMemory,
    WalkQuestion,
    read_walk_texts,
    towers_of,
)
from everlong_lab.training.loop import LoopSettings, Losses, MetricsFn, TrainingResult, learn
from everlong_lab.training.run import Run

BY_DEFAULT = True  # of `everlong train all`
By = Literal["best", "draw", "teacher"]

_LOADS = (2, 3, 4, 6, 8)  # budgets that are trained for
_AT_ONCE = 64  # steps of walks in one training step of imitation
GROUP_TOKENS = (1 + 2 * NEIGHBOURS) * PAGE_TOKENS


@dataclasses.dataclass(frozen=True)
class Training:
    """Train the Walker, which goes on from what a search found to what that names, on chains of facts in books."""

    text: tuple[pathlib.Path, ...] = ()  # books to plant chains of facts in; by default the shipped ones
    texts: int = 6  # number of texts that the model reads, for the vectors of its towers
    words_alone: int = 30  # number of further texts that are searched by words alone
    tokens: int = 20_000  # number of tokens in a text
    chains: int = 30  # chains of facts in a text: a third each of one, two and three facts
    rounds: int = 4  # rounds of imitation; after each round of walks the policy is fitted to all walks so far
    epochs: int = 12  # passes over these walks in each round
    learning_rate: float = 3e-3  # learning rate of AdamW
    weight_decay: float = 1e-3  # weight decay of AdamW
    reinforce_rounds: int = 8  # rounds of reinforcement over all questions
    walks: int = 4  # walks for a question; the others are the baseline of each
    reinforce_rate: float = 5e-4  # learning rate of these rounds
    cost: float = 0.02  # cost of a load in the reward (lambda)
    entropy: float = 0.003  # weight of the policy's entropy, which keeps it trying
    held_out: float = 0.15  # share of the texts to hold out; the best round is chosen on them
    seed: int = 0  # seed; the same seed on the same machine gives the same bits
    minutes: float | None = None  # most minutes of training; reading the texts comes before and does not count


@dataclasses.dataclass(frozen=True)
class _Step:
    features: torch.Tensor  # [ways, FEATURES]
    right: torch.Tensor  # [ways] bool
    taken: int


def train(run: Run, training: Training) -> dict[str, PackPart]:
    """Run `everlong train walker`. Searches use the towers of the pack."""
    drawn = draw_walk_texts(
        run.tokenizer,
        books_of(training.text),
        texts=training.texts + training.words_alone,
        tokens=training.tokens,
        chains=training.chains,
        split="train",
        seed=training.seed,
    )
    whole, words_alone = drawn[: training.texts], drawn[training.texts :]
    return train_on(run, whole, training, words_alone)


def train_on(
    run: Run,
    texts: Sequence[Record],
    training: Training,
    words_alone: Sequence[Record] = (),
) -> dict[str, PackPart]:
    """Read texts with chains of facts, with the towers of `run.pack` where it has some; then walk and learn.

    `words_alone` are searched by words, without a reading. That is cheap, and it is what a memory without towers is
    like. Vectors lie in `run.work`: a run that was cut short goes on there. Training takes minutes and begins anew. The
    policy is chosen on held-out texts. Raises ValueError where there are too few texts.
    """
    towers = towers_of(run.pack)
    cheap = read_walk_texts(run.model, run.tokenizer, None, words_alone, run.work / "words", progress=run.progress)
    whole = read_walk_texts(run.model, run.tokenizer, towers, texts, run.work / "vectors", progress=run.progress)
    walker, learned, held_out = fit([*whole, *cheap], WalkerSettings(), training, check=run.check)
    every = (*words_alone, *texts)
    hops = [len(questions.spans) for text in every for questions in text.questions]
    made = run.made(
        training,
        learned,
        {"fit": figures_of(walker, held_out)},
        data={f"{count} facts": hops.count(count) for count in sorted(set(hops))},
        books=sorted({text.name.rpartition(" ")[0] for text in every}),
        towers="" if towers is None else towers[0],
    )
    return {WALKER: walker.part(made)}


@isolated_rng()
def fit(
    memories: Sequence[WalkMemory], settings: WalkerSettings, training: Training, *, check: MetricsFn | None = None
) -> tuple[WalkerNet, TrainingResult, Sequence[WalkMemory]]:
    """Return the Walker, how it learned by imitation and then by reinforcement, and the held-out memories.

    One seed gives the same bits. Raises ValueError for fewer than two texts, as one is held out.
    """
    if len(memories) < 2:
        raise ValueError(f"{len(memories)} texts: a Walker is trained on some and chosen by others")
    torch.default_generator.manual_seed(training.seed)
    random = np.random.default_rng(training.seed)
    every = max(2, round(1 / training.held_out))
    held_out = memories[::every]
    train = [memory for at, memory in enumerate(memories) if at % every]
    questions = [(memory, question) for memory in train for question in memory.questions]
    walker = WalkerNet(settings)
    with torch.no_grad():
        walker.outer.weight.mul_(0.1)

    def found(_: Any) -> dict[str, float]:
        figures = figures_of(walker, held_out)
        return {"held out": figures["all found"], **figures}

    def learned_by(rounds: Rounds, rate: float, weight_decay: float, minutes: float | None) -> TrainingResult:
        ends = False  # the last lesson ends a round

        def lesson(_: Any, number: int, __: np.random.Generator, losses: Losses) -> torch.Tensor | None:
            nonlocal ends
            loss, ends = next(rounds, (None, True))
            return None if loss is None else losses.record("loss", loss)

        steps = sys.maxsize  # training ends after its rounds
        plain = LoopSettings(steps, warmup=1, falling=False, clip=None, seed=training.seed)
        loop = dataclasses.replace(plain, learning_rate=rate, weight_decay=weight_decay, minutes=minutes)
        how: dict[str, Any] = {"due": lambda: ends, "better": operator.gt, "moves": False, "progress": check}
        return learn(walker, lesson, found, loop, lessons=1, **how)

    imitating, reinforcing = (rounds(walker, questions, training, random) for rounds in (_imitated, _reinforced))
    first = learned_by(imitating, training.learning_rate, training.weight_decay, training.minutes)
    left = None if training.minutes is None else max(0.0, training.minutes - first.minutes)
    second = learned_by(reinforcing, training.reinforce_rate, 0.0, left)
    learned = TrainingResult(first.steps + second.steps, first.minutes + second.minutes, (*first.log, *second.log))
    return walker.eval(), learned, held_out


MemoryQuestion = tuple[WalkMemory, WalkQuestion]
Rounds = Iterator[tuple[torch.Tensor | None, bool]]  # one loss after the other, and whether a round ends with it


def _imitated(
    walker: WalkerNet, questions: Sequence[MemoryQuestion], training: Training, random: np.random.Generator
) -> Rounds:
    """Yield the loss over the walks of each round and those before: -log of the policy's share for all right ways.

    Each round goes through them several times.
    """
    steps: list[_Step] = []
    for round_ in range(training.rounds):
        policy = walker.policy()
        for memory, question in questions:
            by: By = "teacher" if round_ == 0 or random.random() < 0.5 else "draw"
            budget, seed = int(random.choice(_LOADS)), int(random.integers(1 << 31))
            walk = walk_for(memory, question, policy, budget, by=by, seed=seed, learn=True)
            steps += [step for step in _steps_of(walk) if bool(step.right.any())]
        orders = [random.permutation(len(steps)) for _ in range(training.epochs)]
        batches = [order[at : at + _AT_ONCE] for order in orders for at in range(0, len(order), _AT_ONCE)]
        for number, batch in enumerate(batches, 1):
            features, there, right = _padded([steps[at] for at in batch])
            log_shares = _log_shares(walker, features, there)
            loss = -torch.logsumexp(log_shares.masked_fill(~right, -torch.inf), dim=-1).mean()
            yield loss, number == len(batches)


def _reinforced(
    walker: WalkerNet, questions: Sequence[MemoryQuestion], training: Training, random: np.random.Generator
) -> Rounds:
    """Yield the loss of several walks for a question, each against the mean of the others."""
    for _ in range(training.reinforce_rounds):
        for number, at in enumerate(random.permutation(len(questions)), 1):
            memory, question = questions[int(at)]
            budget, policy = int(random.choice(_LOADS)), walker.policy()
            walks = [
                walk_for(memory, question, policy, budget, by="draw", seed=int(random.integers(1 << 31)), learn=True)
                for _ in range(training.walks)
            ]
            rewards = np.array([_reward(question, walk, training.cost) for walk in walks])
            loss = torch.zeros(())
            for walk, reward in zip(walks, rewards, strict=True):
                others = (rewards.sum() - reward) / max(1, len(rewards) - 1)
                steps = _steps_of(walk)
                features, there, _right = _padded(steps)
                log_shares = _log_shares(walker, features, there)
                taken = log_shares[torch.arange(len(steps)), torch.tensor([step.taken for step in steps])].sum()
                entropy = -(log_shares.exp() * log_shares.masked_fill(~there, 0)).sum()
                loss = loss - float(reward - others) * taken - training.entropy * entropy
            yield loss, number == len(questions)


def walk_for(
    memory: WalkMemory,
    question: WalkQuestion,
    policy: _core.WalkerPolicy,
    loads: int,
    *,
    by: By = "best",
    seed: int = 0,
    learn: bool = False,
) -> _core.SearchResult:
    """Return what a search that walks finds; with `learn`, also all ways of every step and which were right."""
    gold = list(question.gold) if learn else []
    walk = _core.Walk(policy, loads=loads, by=by, seed=seed, gold=gold, keep_all=learn)
    return memory.core.search.find(**question.request(), max_groups=loads, token_budget=loads * GROUP_TOKENS, walk=walk)


def gold_found(result: _core.SearchResult, question: WalkQuestion) -> list[bool]:
    """Return for each gold page whether it is among the groups."""
    there = {(page.block, page.page) for group in result.groups for page in group.pages}
    return [(page.block, page.page) in there for page in question.gold]


def figures_of(walker: WalkerNet, memories: Sequence[WalkMemory], loads: int = 4) -> dict[str, float]:
    """Return the share of questions whose gold pages are all among `loads` groups, by walking; by hops too."""
    policy = walker.policy()
    found: dict[str, list[bool]] = {"all found": []}
    for memory in memories:
        for question in memory.questions:
            every = all(gold_found(walk_for(memory, question, policy, loads), question))
            found["all found"].append(every)
            found.setdefault(f"{question.hops} facts", []).append(every)
    return {name: float(np.mean(of)) for name, of in sorted(found.items())}


def _steps_of(result: _core.SearchResult) -> list[_Step]:
    assert result.walk is not None
    return [
        _Step(torch.from_numpy(step.features), torch.from_numpy(step.right), step.taken) for step in result.walk.steps
    ]


def _padded(steps: Sequence[_Step]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return features [steps, ways, FEATURES], which ways exist and which are right [steps, ways] bool."""
    most = max(len(step.features) for step in steps)
    features = torch.zeros(len(steps), most, len(FEATURES))
    there, right = torch.zeros(2, len(steps), most, dtype=torch.bool)
    for at, step in enumerate(steps):
        count = len(step.features)
        features[at, :count], there[at, :count], right[at, :count] = step.features, True, step.right
    return features, there, right


def _log_shares(walker: WalkerNet, features: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Return [steps, ways]: log of the softmax over a step's ways; minus infinity where there is none."""
    logits = walker(features.flatten(0, 1)).view(there.shape)
    return torch.log_softmax(logits.masked_fill(~there, -torch.inf), dim=-1)


def _reward(question: WalkQuestion, result: _core.SearchResult, cost: float) -> float:
    """Return the reward for what the walk itself loaded. What fills up the groups after it is no
    merit of the policy.
    """
    assert result.walk is not None
    brought = set()
    for page in result.walk.loads:
        brought |= {page.begin // PAGE_TOKENS + beside for beside in range(-NEIGHBOURS, NEIGHBOURS + 1)}
    found = [gold.begin // PAGE_TOKENS in brought for gold in question.gold]
    return float(np.mean(found)) + float(all(found)) - cost * len(result.walk.loads)
