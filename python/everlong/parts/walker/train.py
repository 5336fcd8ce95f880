"""Trains the Walker (parts/walker) on chains of facts planted in books (corpora/walks.py).

First by imitation: of the ways from where a walk stands those are right that bring a page of gold which is missing, the
shortest paths to all of them, and ending is right once none is missing. A teacher walks, then the policy itself, told
what would have been right where it went (DAgger, Ross, Gordon and Bagnell, AISTATS 2011). Then by REINFORCE (Williams,
1992): reward = share of the gold pages that were loaded, 1 more if all were, minus lambda a load; the baseline is the
mean of the other walks for the same question.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.parts.walker.model import FEATURES, Walker, WalkerSettings
from everlong.training.walks import NEIGHBOURS, PAGE_TOKENS, WalkMemory, WalkQuestion

By = Literal["best", "draw", "teacher"]

_LOADS = (2, 3, 4, 6, 8)  # budgets that are trained for
GROUP_TOKENS = (1 + 2 * NEIGHBOURS) * PAGE_TOKENS


@dataclasses.dataclass(frozen=True)
class WalkerTraining:
    """How it is done; the defaults are those of the measured one."""

    rounds: int = 4  # of imitation: everybody walks, then the policy is fitted to all walks so far
    epochs: int = 12  # over these walks, a round
    learning_rate: float = 3e-3
    weight_decay: float = 1e-3
    reinforce_rounds: int = 8  # over all questions
    walks: int = 4  # a question, of which each is the others' baseline
    reinforce_rate: float = 5e-4
    cost: float = 0.02  # lambda, of a load
    entropy: float = 0.003  # of the policy, that it keeps trying
    held_out: float = 0.15  # of the texts, one in so many: by them the best round is chosen
    seed: int = 0
    minutes: float | None = None  # no round begins later


@dataclasses.dataclass(frozen=True)
class TrainedWalker:
    walker: Walker
    rounds: int
    minutes: float
    log: tuple[dict[str, float], ...]
    held_out: tuple[WalkMemory, ...]


@dataclasses.dataclass(frozen=True)
class _Step:
    features: torch.Tensor  # [ways, FEATURES]
    right: torch.Tensor  # [ways] bool
    taken: int


def train_walker(
    memories: Sequence[WalkMemory],
    settings: WalkerSettings,
    training: WalkerTraining,
    *,
    progress: Callable[[int, dict[str, float]], None] | None = None,
) -> TrainedWalker:
    """The same bits for one seed and machine. ValueError where there are not two texts, to train on and to hold out."""
    if len(memories) < 2:
        raise ValueError(f"{len(memories)} texts: a Walker is trained on some and chosen by others")
    started = time.monotonic()
    torch.manual_seed(training.seed)
    random = np.random.default_rng(training.seed)
    every = max(2, round(1 / training.held_out))
    fit = memories[::every]
    train = [memory for at, memory in enumerate(memories) if at % every]
    asked = [(memory, question) for memory in train for question in memory.questions]
    walker = Walker(settings)
    with torch.no_grad():
        walker.outer.weight.mul_(0.1)
    log: list[dict[str, float]] = []
    best, most = walker.state_dict(), -1.0

    def over() -> bool:
        return training.minutes is not None and (time.monotonic() - started) / 60 > training.minutes

    def checked(loss: float) -> None:
        nonlocal best, most
        found = figures_of(walker, fit)
        log.append({"round": float(len(log) + 1), "loss": loss, **found})
        if progress is not None:
            progress(len(log), log[-1])
        if found["all found"] > most:
            most = found["all found"]
            best = {name: tensor.clone() for name, tensor in walker.state_dict().items()}

    steps: list[_Step] = []
    optimizer = torch.optim.AdamW(walker.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay)
    for round_ in range(training.rounds):
        if over():
            break
        policy = walker.policy()
        for memory, question in asked:
            by: By = "teacher" if round_ == 0 or random.random() < 0.5 else "draw"
            budget = int(random.choice(_LOADS))
            walk = walk_for(memory, question, policy, budget, by=by, seed=int(random.integers(1 << 31)), learn=True)
            steps += [step for step in _steps_of(walk) if bool(step.right.any())]
        checked(_imitate(walker, optimizer, steps, training, random))
    walker.load_state_dict(best)

    optimizer = torch.optim.AdamW(walker.parameters(), lr=training.reinforce_rate, weight_decay=0)
    for _ in range(training.reinforce_rounds):
        if over():
            break
        losses = []
        for at in random.permutation(len(asked)):
            memory, question = asked[int(at)]
            budget, policy = int(random.choice(_LOADS)), walker.policy()
            walks = [
                walk_for(memory, question, policy, budget, by="draw", seed=int(random.integers(1 << 31)), learn=True)
                for _ in range(training.walks)
            ]
            losses.append(_reinforce(walker, optimizer, question, walks, training))
        checked(float(np.mean(losses)))
    walker.load_state_dict(best)
    return TrainedWalker(walker.eval(), len(log), (time.monotonic() - started) / 60, tuple(log), tuple(fit))


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
    """What a search that walks finds; to `learn`, with all ways of every step and what was right."""
    gold = list(question.gold) if learn else []
    walk = _core.Walk(policy, loads=loads, by=by, seed=seed, gold=gold, keep_all=learn)
    return memory.core.search(**question.request(), max_groups=loads, token_budget=loads * GROUP_TOKENS, walk=walk)


def gold_found(result: _core.SearchResult, question: WalkQuestion) -> list[bool]:
    """Of each page of gold, whether it is among the groups."""
    there = {(page.block, page.page) for group in result.groups for page in group.pages}
    return [(page.block, page.page) in there for page in question.gold]


def figures_of(walker: Walker, memories: Sequence[WalkMemory], loads: int = 4) -> dict[str, float]:
    """Of which questions all pages of gold are among `loads` groups, by walking; by hops, too."""
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
    """Features [steps, ways, FEATURES], which ways there are and which are right [steps, ways] bool."""
    most = max(len(step.features) for step in steps)
    features = torch.zeros(len(steps), most, len(FEATURES))
    there, right = torch.zeros(2, len(steps), most, dtype=torch.bool)
    for at, step in enumerate(steps):
        count = len(step.features)
        features[at, :count], there[at, :count], right[at, :count] = step.features, True, step.right
    return features, there, right


def _log_shares(walker: Walker, features: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """[steps, ways]: log of the softmax over the ways of a step; minus infinity where there is none."""
    logits = walker(features.flatten(0, 1)).view(there.shape)
    return torch.log_softmax(logits.masked_fill(~there, -torch.inf), dim=-1)


def _imitate(
    walker: Walker,
    optimizer: torch.optim.Optimizer,
    steps: Sequence[_Step],
    training: WalkerTraining,
    random: np.random.Generator,
) -> float:
    """The last epoch's mean of -log of what the policy gives to all right ways together."""
    losses: list[float] = []
    for epoch in range(training.epochs):
        order: npt.NDArray[np.int64] = random.permutation(len(steps))
        for at in range(0, len(order), 64):
            features, there, right = _padded([steps[i] for i in order[at : at + 64]])
            log_shares = _log_shares(walker, features, there)
            loss = -torch.logsumexp(log_shares.masked_fill(~right, -torch.inf), dim=-1).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if epoch == training.epochs - 1:
                losses.append(float(loss.detach()))
    return float(np.mean(losses)) if losses else 0.0


def _reinforce(
    walker: Walker,
    optimizer: torch.optim.Optimizer,
    question: WalkQuestion,
    walks: Sequence[_core.SearchResult],
    training: WalkerTraining,
) -> float:
    rewards = np.array([_reward(question, walk, training.cost) for walk in walks])
    loss = torch.zeros(())
    for walk, reward in zip(walks, rewards, strict=True):
        others = (rewards.sum() - reward) / max(1, len(rewards) - 1)
        steps = _steps_of(walk)
        features, there, _ = _padded(steps)
        log_shares = _log_shares(walker, features, there)
        taken = log_shares[torch.arange(len(steps)), torch.tensor([step.taken for step in steps])].sum()
        entropy = -(log_shares.exp() * log_shares.masked_fill(~there, 0)).sum()
        loss = loss - float(reward - others) * taken - training.entropy * entropy
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach())


def _reward(question: WalkQuestion, result: _core.SearchResult, cost: float) -> float:
    """By what the walk itself loaded: what fills up the groups behind it is no merit of the policy."""
    assert result.walk is not None
    brought = set()
    for page in result.walk.loads:
        brought |= {page.begin // PAGE_TOKENS + beside for beside in range(-NEIGHBOURS, NEIGHBOURS + 1)}
    found = [gold.begin // PAGE_TOKENS in brought for gold in question.gold]
    return float(np.mean(found)) + float(all(found)) - cost * len(result.walk.loads)
