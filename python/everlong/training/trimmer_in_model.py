"""Trains the Trimmer through the model, stage 1 (the four-MI100 design, 3.2.3; the one-GPU design, 3.2.1).

The teacher has all of a stream's keys, the student those of its blocks that the Trimmer chooses, hard, under a small
K. What it loses on what follows (scenarios.py) goes back through the frozen model to the scores: by weights of keys
(models/masked.py) that are 0 or 1 and whose derivative is that of a relaxed choice (top_k.py). Noise on the scores
draws several masks a target. An adapter may learn with it (the design, 3.2.4): it is at work in the student alone.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import pathlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from everlong.learned.adapter import Adapter, AttachedAdapter
from everlong.learned.towers import side_by_side
from everlong.learned.trimmer import Trimmer
from everlong.models.cache_argument import cache_argument
from everlong.models.cut_cache import WholeText, cut_cache, go_on, read_whole
from everlong.models.masked import MaskedAttention
from everlong.training.attended import BLOCK_TOKENS, SINK_TOKENS
from everlong.training.loop import in_turns
from everlong.training.scenarios import Scenario, Target
from everlong.training.top_k import gumbel, straight_through_top_k

_STATE = "state.pt"


@dataclasses.dataclass(frozen=True)
class InModelTraining:
    steps: int = 100
    batch: int = 4  # scenarios a step
    masks: int = 2  # of each target
    budgets: tuple[int, ...] = (16, 32, 64, 128)  # tokens kept of a block; drawn for each target
    ce: float = 0.5  # alpha, beta, gamma of the design's loss
    kl: float = 1.0
    attention_kl: float = 0.1
    noise: float = 0.5  # times Gumbel's, on the scores
    temperature: float = 0.5  # of the relaxed choice, in units of the scores
    learning_rate: float = 2e-4
    adapter_learning_rate: float = 5e-4  # of an adapter that learns, too
    check_every: int = 10  # steps; the weights of the least loss on held-out scenarios are kept
    seed: int = 0
    minutes: float | None = None  # no step begins later

    def __post_init__(self) -> None:
        if not all(0 < budget < BLOCK_TOKENS for budget in self.budgets) or not self.budgets:
            raise ValueError(f"budgets are {self.budgets}, expected some of 1 to {BLOCK_TOKENS - 1}")
        if min(self.steps, self.batch, self.masks, self.check_every) < 1:
            raise ValueError("steps, batch, masks and check_every must be positive")


@dataclasses.dataclass(frozen=True)
class Choice:
    """How many of a stream's tokens are kept: so many of each block, or as many on average, wherever they stand."""

    budget: int
    over: Literal["block", "stream"]


@dataclasses.dataclass(frozen=True)
class TrainedInModel:
    trimmer: Trimmer
    adapter: Adapter | None
    steps: int
    minutes: float
    log: tuple[dict[str, float], ...]  # at each check; the first one is of what it began from


@dataclasses.dataclass(frozen=True)
class _Read:
    """A scenario's stream, read once; and what the teacher says of each target: log probabilities [scored, V]."""

    whole: WholeText
    states: torch.Tensor  # fp32 [blocks * BLOCK_TOKENS, width]
    teacher: tuple[torch.Tensor, ...]


class InModelTrainer:
    """One training of one Trimmer, and of an adapter where one is given; the model is frozen and stays as it is."""

    def __init__(
        self,
        model: Any,
        scenarios: Sequence[Scenario],
        training: InModelTraining,
        *,
        adapter: Adapter | None = None,
        checkpoints: pathlib.Path | None = None,
        progress: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:
        """`adapter` is trained in place. ValueError where all scenarios are held out, or none."""
        self._model, self._training = model, training
        self._adapter = adapter
        self._attached = None if adapter is None else AttachedAdapter(adapter, model)
        self._checkpoints, self._progress = checkpoints, progress
        self._train, self._fit = ([one for one in scenarios if one.split == split] for split in ("train", "fit"))
        if not self._train or not self._fit:
            raise ValueError("a Trimmer is trained on some scenarios and stopped by others; one of the two has none")
        self._read: dict[str, _Read] = {}

    def train(self, trimmer: Trimmer) -> TrainedInModel:
        """From `trimmer`, which stays as it is, or from the last checkpoint. The same bits for one seed, machine and
        number of threads.
        """
        training = self._training
        own = copy.deepcopy(trimmer).requires_grad_(requires_grad=True)
        learned = torch.nn.ModuleDict({"trimmer": own})
        rates: list[dict[str, Any]] = [{"params": own.parameters(), "lr": training.learning_rate}]
        if self._adapter is not None:
            learned["adapter"] = self._adapter
            rates.append({"params": self._adapter.parameters(), "lr": training.adapter_learning_rate})
        optimizer = torch.optim.AdamW(rates, weight_decay=0.0)
        step, seconds, log, best = self._load(learned, optimizer)
        started, before = time.monotonic(), seconds
        if not log:
            log.append({"step": 0.0, "minutes": 0.0, "held out": self.held_out(own)})
            self._tell(log[-1])
        losses: list[float] = []
        late = False
        frozen = [weight.requires_grad for weight in self._model.parameters()]
        self._model.requires_grad_(False)
        try:
            while step < training.steps and not late:
                for at in in_turns(training.seed, step, training.batch, len(self._train)):
                    losses.append(self._backward(own, self._train[at], random.Random(f"{training.seed} {step} {at}")))
                torch.nn.utils.clip_grad_norm_(learned.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                seconds = before + time.monotonic() - started
                late = training.minutes is not None and seconds > 60 * training.minutes
                if step % training.check_every == 0 or step == training.steps or late:
                    held_out = self.held_out(own)
                    if held_out < min(entry["held out"] for entry in log):
                        best = copy.deepcopy(learned.state_dict())
                    loss = sum(losses) / len(losses)
                    log.append({"step": float(step), "minutes": seconds / 60, "loss": loss, "held out": held_out})
                    losses.clear()
                    self._tell(log[-1])
                    self._save(learned, optimizer, step, seconds, log, best)
        finally:
            for weight, before_it in zip(self._model.parameters(), frozen, strict=True):
                weight.requires_grad_(before_it)
        learned.load_state_dict(best)
        learned.eval().requires_grad_(requires_grad=False)
        return TrainedInModel(own, self._adapter, step, seconds / 60, tuple(log))

    @torch.no_grad()
    def held_out(self, trimmer: Trimmer) -> float:
        """Loss on the scenarios that are held out, without noise, mean over targets and budgets."""
        losses = []
        for scenario in self._fit:
            read = self._reading(trimmer, scenario)
            scores = scores_of(trimmer, read.states, len(scenario.ids))
            for target, teacher in zip(scenario.targets, read.teacher, strict=True):
                weights = torch.cat(
                    [
                        key_weights(scores[None], scenario, Choice(budget, _over(scenario)), 1.0)
                        for budget in self._training.budgets
                    ]
                )
                losses.append(float(self.loss(read.whole, weights, scenario, target, teacher)))
        return sum(losses) / len(losses)

    def loss(
        self, whole: WholeText, weights: torch.Tensor, scenario: Scenario, target: Target, teacher: torch.Tensor
    ) -> torch.Tensor:
        """alpha CE + beta KL from the teacher [scored, V] + gamma Attn-KL, mean over masks [B, n] and scored tokens."""
        training = self._training
        with contextlib.nullcontext() if self._attached is None else self._attached.at_work():
            said, lost = said_under(self._model, whole, weights, target)
        right = target.ids[target.first :].to(said.device)
        ce = -said.gather(-1, right[None, :, None].expand(len(said), -1, -1)).mean()
        teacher = teacher.to(said.device).float()
        kl = (teacher.exp() * (teacher - said)).sum(dim=-1).mean()
        return training.ce * ce + training.kl * kl + training.attention_kl * lost

    # --- a step

    def _backward(self, trimmer: Trimmer, scenario: Scenario, drawn: random.Random) -> float:
        """The gradient of one scenario's mean loss, added to what there is; the loss."""
        training, total = self._training, 0.0
        read = self._reading(trimmer, scenario)
        share = 1 / (training.batch * len(scenario.targets))
        for target, teacher in zip(scenario.targets, read.teacher, strict=True):
            noise = gumbel((training.masks, len(read.states)), torch.Generator().manual_seed(drawn.getrandbits(62)))
            scores = scores_of(trimmer, read.states, len(scenario.ids)) + training.noise * noise
            choice = Choice(drawn.choice(training.budgets), _over(scenario))
            weights = key_weights(scores, scenario, choice, training.temperature)
            loss = self.loss(read.whole, weights, scenario, target, teacher)
            torch.autograd.backward(loss * share)
            total += float(loss.detach())
        return total / len(scenario.targets)

    def _reading(self, trimmer: Trimmer, scenario: Scenario) -> _Read:
        """Read once in a training: what costs is the forward of the stream."""
        if scenario.name not in self._read:
            whole = read_whole(self._model, scenario.ids, trimmer.settings.layers)
            end = SINK_TOKENS + scenario.blocks * BLOCK_TOKENS
            states = side_by_side(whole.hidden, trimmer.settings.layers)[SINK_TOKENS:end].float()
            teacher = tuple(_taught(self._model, whole, len(scenario.ids), target) for target in scenario.targets)
            self._read[scenario.name] = _Read(dataclasses.replace(whole, hidden={}), states, teacher)
        return self._read[scenario.name]

    # --- what is kept between runs

    def _tell(self, entry: dict[str, float]) -> None:
        if self._progress is not None:
            self._progress(int(entry["step"]), entry)

    def _save(
        self,
        learned: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        step: int,
        seconds: float,
        log: list[dict[str, float]],
        best: dict[str, torch.Tensor],
    ) -> None:
        if self._checkpoints is None:
            return
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        state = {"learned": learned.state_dict(), "optimizer": optimizer.state_dict(), "best": best, "step": step}
        beside = self._checkpoints / (_STATE + ".new")
        torch.save({**state, "seconds": seconds, "log": log, "of": self._of()}, beside)
        beside.replace(self._checkpoints / _STATE)

    def _load(
        self, learned: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[int, float, list[dict[str, float]], dict[str, torch.Tensor]]:
        file = None if self._checkpoints is None else self._checkpoints / _STATE
        if file is None or not file.exists():
            return 0, 0.0, [], copy.deepcopy(learned.state_dict())
        state = torch.load(file, weights_only=True)
        if state["of"] != self._of():
            raise ValueError(f"{file.parent} holds another training; name another folder or remove it")
        learned.load_state_dict(state["learned"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"], state["seconds"], state["log"], state["best"]

    def _of(self) -> str:
        """What a checkpoint is of, but for how long it goes on."""
        settings = dataclasses.replace(self._training, steps=1, minutes=None)
        names = [one.name for one in (*self._train, *self._fit)]
        return json.dumps([dataclasses.asdict(settings), self._adapter is not None, names])


def scores_of(trimmer: Trimmer, states: torch.Tensor, tokens: int) -> torch.Tensor:
    """[blocks * BLOCK_TOKENS] of states [..., width] of the blocks of a stream of so many tokens."""
    return torch.cat(
        [
            trimmer.scores(own, tokens - SINK_TOKENS - (block + 1) * BLOCK_TOKENS)
            for block, own in enumerate(torch.split(states, BLOCK_TOKENS))
        ]
    )


def key_weights(scores: torch.Tensor, scenario: Scenario, choice: Choice, temperature: float) -> torch.Tensor:
    """[B, n] of scores [B, blocks * BLOCK_TOKENS]: of all keys of a stream; sinks and what is newest count whole."""
    if choice.over == "block":
        of_blocks = scores.view(len(scores), scenario.blocks, BLOCK_TOKENS)
        kept = straight_through_top_k(of_blocks, choice.budget, temperature).flatten(1)
    else:
        kept = straight_through_top_k(scores, choice.budget * scenario.blocks, temperature)
    newest = len(scenario.ids) - SINK_TOKENS - kept.shape[1]
    return torch.cat([kept.new_ones(len(kept), SINK_TOKENS), kept, kept.new_ones(len(kept), newest)], dim=1)


def said_under(
    model: Any, whole: WholeText, weights: torch.Tensor, target: Target
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log probabilities [B, scored, V] fp32 of a target behind keys with weights [B, n], and the attention that is
    lost (`MaskedAttention.lost`).
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
    """A topic that is over may lose more than one that goes on."""
    return "stream" if scenario.family == "switch" else "block"
