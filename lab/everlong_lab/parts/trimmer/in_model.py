"""Train the Trimmer through the model.

The teacher has all of a stream's keys. The student has only those that the Trimmer chooses in its blocks, as a hard
choice under a small K. Its loss on what follows (scenarios.py) goes back through the frozen model to the scores. It
does so by weights of keys (masked.py) that are 0 or 1 and have the derivative of a relaxed choice (top_k.py).
Noise on the scores draws several masks a target. An adapter may learn with it; it works in the student alone.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import pathlib
import random
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch

from everlong.frame.taps import side_by_side
from everlong.models.low_rank import AttachedMaps, LowRankMaps
from everlong.models.releases import cache_argument
from everlong.models.soft_tokens import frozen
from everlong.models.trimmed_cache import WholeText, cut_cache, go_on, read_whole
from everlong.parts.trimmer.model import TrimmerNet
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong_lab.corpora.scenarios import Scenario, Target
from everlong_lab.corpora.seeds import in_turn
from everlong_lab.parts.trimmer.masked import MaskedAttention
from everlong_lab.parts.trimmer.scores import scores_of
from everlong_lab.parts.trimmer.top_k import gumbel, straight_through_top_k
from everlong_lab.training.loop import LoopSettings, Losses, MetricsFn, TrainingResult, learn
from everlong_lab.training.run import two_splits
from everlong_lab.training.states import require_same


@dataclasses.dataclass(frozen=True)
class InModelTraining(LoopSettings):
    steps: int = 100
    batch: int = 4  # scenarios in each step
    learning_rate: float = 2e-4
    adapter_learning_rate: float = 5e-4  # of an adapter that learns, too
    warmup: int = 1
    falling: bool = False
    weight_decay: float = 0.0
    check_every: int = 10
    masks: int = 2  # for each target
    budgets: tuple[int, ...] = (16, 32, 64, 128)  # tokens kept of a block; drawn for each target
    ce: float = 0.5  # weights of the loss terms: cross entropy, KL from the teacher, lost attention
    kl: float = 1.0
    attention_kl: float = 0.1
    noise: float = 0.5  # factor on the Gumbel noise that is added to the scores
    temperature: float = 0.5  # of the relaxed choice, in units of the scores

    def __post_init__(self) -> None:
        if not all(0 < budget < BLOCK_TOKENS for budget in self.budgets) or not self.budgets:
            raise ValueError(f"budgets are {self.budgets}, expected some of 1 to {BLOCK_TOKENS - 1}")
        if min(self.steps, self.batch, self.masks, self.check_every) < 1:
            raise ValueError("steps, batch, masks and check_every must be positive")


@dataclasses.dataclass(frozen=True)
class Choice:
    """How many of a stream's tokens are kept: `budget` of each block, or as many on average, wherever they stand."""

    budget: int
    over: Literal["block", "stream"]


@dataclasses.dataclass(frozen=True)
class _Read:
    """A scenario's stream, read once, and what the teacher says of each target: log probabilities [scored, V]."""

    whole: WholeText
    states: torch.Tensor  # fp32 [blocks * BLOCK_TOKENS, width]
    teacher: tuple[torch.Tensor, ...]


@dataclasses.dataclass
class InModelTrainer:
    """One training of a Trimmer, and of an adapter where one is given. The model is frozen and stays as it is.

    Raises ValueError where all scenarios are held out, or none.
    """

    model: Any
    scenarios: Sequence[Scenario]
    training: InModelTraining
    adapter: LowRankMaps | None = None  # trained in place
    checkpoints: pathlib.Path | None = None
    progress: MetricsFn | None = None

    def __post_init__(self) -> None:
        self._attached = None if self.adapter is None else AttachedMaps(self.adapter, self.model)
        self._train, self._fit = two_splits(
            "a Trimmer is trained on some scenarios", self.scenarios, lambda one: one.split
        )
        self._read: dict[str, _Read] = {}

    def train(self, trimmer: TrimmerNet) -> tuple[TrimmerNet, TrainingResult]:
        """Train from `trimmer`, which stays as it is, or from the last checkpoint.

        One seed, machine and number of threads give the same bits. Raises EverlongError where the checkpoints are of
        another training.
        """
        self._require_same()
        training = self.training
        own = copy.deepcopy(trimmer).requires_grad_(requires_grad=True)
        module = torch.nn.ModuleDict({"trimmer": own})
        if self.adapter is not None:
            module["adapter"] = self.adapter

        def lesson(_: Any, number: int, __: np.random.Generator, losses: Losses) -> Iterator[torch.Tensor]:
            step, at = number // training.batch, in_turn(training.seed, number, len(self._train))
            terms = self._losses(own, self._train[at], random.Random(f"{training.seed} {step} {at}"))
            share = 1 / len(self._train[at].targets)
            total = 0.0
            for loss in terms:
                total += share * float(loss.detach())
                yield loss * share
            losses["loss"].append(total)

        with frozen(self.model):
            learned = learn(
                module,
                lesson,
                lambda _: self.held_out(own),
                training,
                rates={} if self.adapter is None else {"adapter": training.adapter_learning_rate},
                checkpoints=self.checkpoints,
                progress=self.progress,
            )
        module.eval().requires_grad_(requires_grad=False)
        return own, learned

    @torch.no_grad()
    def held_out(self, trimmer: TrimmerNet) -> float:
        """Return the mean loss on the held-out scenarios over targets and budgets, without noise."""
        losses = []
        for scenario in self._fit:
            read = self._reading(trimmer, scenario)
            scores = scores_of(trimmer, read.states, len(scenario.ids))
            for target, teacher in zip(scenario.targets, read.teacher, strict=True):
                weights = torch.cat(
                    [
                        key_weights(scores[None], scenario, Choice(budget, _over(scenario)), 1.0)
                        for budget in self.training.budgets
                    ]
                )
                losses.append(float(self.loss(read.whole, weights, scenario, target, teacher)))
        return sum(losses) / len(losses)

    def loss(
        self, whole: WholeText, weights: torch.Tensor, scenario: Scenario, target: Target, teacher: torch.Tensor
    ) -> torch.Tensor:
        """Return ce * CE + kl * KL from the teacher [scored, V] + attention_kl * lost attention.

        It is a mean over masks [B, n] and scored tokens.
        """
        training = self.training
        with contextlib.nullcontext() if self._attached is None else self._attached.active():
            losses, lost = logits_under(self.model, whole, weights, target)
        right = target.ids[target.first :].to(losses.device)
        ce = -losses.gather(-1, right[None, :, None].expand(len(losses), -1, -1)).mean()
        teacher = teacher.to(losses.device).float()
        kl = (teacher.exp() * (teacher - losses)).sum(dim=-1).mean()
        return training.ce * ce + training.kl * kl + training.attention_kl * lost

    # --- a step

    def _losses(self, trimmer: TrimmerNet, scenario: Scenario, drawn: random.Random) -> Iterator[torch.Tensor]:
        """Yield the loss of each of a scenario's targets."""
        training = self.training
        read = self._reading(trimmer, scenario)
        for target, teacher in zip(scenario.targets, read.teacher, strict=True):
            noise = gumbel((training.masks, len(read.states)), torch.Generator().manual_seed(drawn.getrandbits(62)))
            scores = scores_of(trimmer, read.states, len(scenario.ids)) + training.noise * noise
            choice = Choice(drawn.choice(training.budgets), _over(scenario))
            weights = key_weights(scores, scenario, choice, training.temperature)
            yield self.loss(read.whole, weights, scenario, target, teacher)

    def _reading(self, trimmer: TrimmerNet, scenario: Scenario) -> _Read:
        """Read a scenario once in a training, as the forward pass of its stream is what costs."""
        if scenario.name not in self._read:
            whole = read_whole(self.model, scenario.ids, trimmer.settings.layers)
            end = SINK_TOKENS + scenario.blocks * BLOCK_TOKENS
            states = side_by_side(whole.hidden, trimmer.settings.layers)[SINK_TOKENS:end].float()
            teacher = tuple(_taught(self.model, whole, len(scenario.ids), target) for target in scenario.targets)
            self._read[scenario.name] = _Read(dataclasses.replace(whole, hidden={}), states, teacher)
        return self._read[scenario.name]

    def _require_same(self) -> None:
        """Raise EverlongError where the checkpoints are of another training; its length may differ."""
        if self.checkpoints is None:
            return
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        settings = dataclasses.replace(self.training, steps=1, minutes=None)
        losses = {
            "settings": dataclasses.asdict(settings),
            "adapter": self.adapter is not None,
            "scenarios": [one.name for one in (*self._train, *self._fit)],
        }
        require_same(self.checkpoints, json.loads(json.dumps(losses)))


def key_weights(scores: torch.Tensor, scenario: Scenario, choice: Choice, temperature: float) -> torch.Tensor:
    """Return [B, n] for scores [B, blocks * BLOCK_TOKENS]: weights of all keys of a stream. Sinks and the newest count
    whole.
    """
    if choice.over == "block":
        of_blocks = scores.view(len(scores), scenario.blocks, BLOCK_TOKENS)
        kept = straight_through_top_k(of_blocks, choice.budget, temperature).flatten(1)
    else:
        kept = straight_through_top_k(scores, choice.budget * scenario.blocks, temperature)
    newest = len(scenario.ids) - SINK_TOKENS - kept.shape[1]
    return torch.cat([kept.new_ones(len(kept), SINK_TOKENS), kept, kept.new_ones(len(kept), newest)], dim=1)


def logits_under(
    model: Any, whole: WholeText, weights: torch.Tensor, target: Target
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a target's log probabilities [B, scored, V] fp32 behind keys with weights [B, n], and the lost attention.

    The lost attention is that of `MaskedAttention.lost`.
    """
    count, tokens = weights.shape
    kept = torch.arange(tokens)[None].expand(count, -1)
    ids = target.ids[:-1][None].expand(count, -1)
    positions = tokens + torch.arange(ids.shape[1], device=model.device)
    with MaskedAttention(model, weights) as masked:
        out = model(
            input_ids=ids.to(model.device),
            **{cache_argument(model): cut_cache(model, whole.cache, kept)},
            position_ids=positions[None].expand(count, -1),
            use_cache=True,
            logits_to_keep=len(target.ids) - target.first,
        )
    return torch.log_softmax(out.logits.float(), dim=-1), masked.lost()


def _taught(model: Any, whole: WholeText, tokens: int, target: Target) -> torch.Tensor:
    rows = len(target.ids) - target.first
    everything = torch.arange(tokens)[None]
    logits = go_on(model, whole.cache, everything, target.ids[None, :-1], tokens, logits_to_keep=rows)[0]
    return torch.log_softmax(logits.float(), dim=-1).to(torch.bfloat16).cpu()


def _over(scenario: Scenario) -> Literal["block", "stream"]:
    """Return the choice for a scenario: a topic that is over may lose more than one that goes on."""
    return "stream" if scenario.origin == "switch" else "block"
