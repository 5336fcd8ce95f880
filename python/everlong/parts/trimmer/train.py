"""Trains the Trimmer on cached states (parts/trimmer), stage 0: nothing goes backward through the model.

What a token is worth is the logarithm of a weighted sum of what was measured of it (training/attended.py): the
attention that it receives while its block is repeated, from questions about the block, and from text that goes on. The
linear map is a ridge in closed form (KVzap, arXiv 2601.07891), the hidden layer is fitted to what the map leaves over.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from everlong.corpora.blocks import BLOCK_TOKENS
from everlong.parts.trimmer.model import Trimmer, TrimmerSettings
from everlong.training.attended import TARGETS, AttendedText

_SAMPLED_ROWS = 20_000  # for center and scale


@dataclasses.dataclass(frozen=True)
class TrimmerTraining:
    """How it is done; the defaults are those of the shipped pack."""

    weights: tuple[float, float, float] = (1.0, 20.0, 6.0)  # of repeated, continued, asked in the sum
    ridge: float = 10.0  # times the number of rows / 1,000
    steps: int = 400  # of the hidden layer, at most
    batch: int = 8  # blocks
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    check_every: int = 20  # steps; the weights of the least error on held-out texts are kept
    patience: int = 5  # checks without a lesser one, then it ends
    seed: int = 0
    minutes: float | None = None  # no step begins later
    threads: int | None = None


@dataclasses.dataclass(frozen=True)
class TrainedTrimmer:
    trimmer: Trimmer
    steps: int
    minutes: float
    log: tuple[dict[str, float], ...]  # at each check


def weights_of(text: str) -> tuple[float, float, float]:
    """Of "1,20,6". ValueError for anything but three numbers, none negative and not all 0."""
    try:
        repeated, continued, asked = (float(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"weights {text!r}: expected three numbers, such as 1,20,6") from None
    if min(repeated, continued, asked) < 0 or max(repeated, continued) <= 0:
        raise ValueError(f"weights {text!r}: none may be negative, and one of the first two must be more than 0")
    return repeated, continued, asked


def worth(targets: torch.Tensor, weights: Sequence[float]) -> torch.Tensor:
    """[T] of logarithms [T, len(TARGETS)]: log of their weighted sum; what is NaN was not measured and adds nothing."""
    terms = targets + torch.tensor([max(weight, 1e-12) for weight in weights]).log()
    return torch.logsumexp(terms.nan_to_num(nan=-torch.inf), dim=-1)


def train_trimmer(
    texts: Sequence[AttendedText],
    settings: TrimmerSettings,
    training: TrimmerTraining,
    *,
    progress: Callable[[int, dict[str, float]], None] | None = None,
) -> TrainedTrimmer:
    """The same bits for one seed, machine and number of threads. ValueError where all texts are held out, or none."""
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    random = np.random.default_rng(training.seed)
    torch.manual_seed(training.seed)
    started = time.monotonic()
    trimmer = Trimmer(settings)
    train, fit = (_blocks(texts, split, training) for split in ("train", "fit"))
    if not train or not fit:
        raise ValueError("a Trimmer is trained on some texts and stopped by others; one of the two has none")
    _normalise(trimmer, train, random)
    with torch.no_grad():
        train, fit = ([(trimmer.normal(states), target) for states, target in blocks] for blocks in (train, fit))
    solve_ridge(trimmer, train, training.ridge)
    log = [{"step": 0.0, **_found(trimmer, fit)}]
    step = 0
    if trimmer.inner is not None and training.steps > 0:
        step = _fit_rest(trimmer, train, fit, training, random, started, log, progress)
    return TrainedTrimmer(trimmer.eval(), step, (time.monotonic() - started) / 60, tuple(log))


def solve_ridge(trimmer: Trimmer, blocks: Sequence[tuple[torch.Tensor, torch.Tensor]], ridge: float) -> None:
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


def _fit_rest(
    trimmer: Trimmer,
    train: Sequence[tuple[torch.Tensor, torch.Tensor]],
    fit: Sequence[tuple[torch.Tensor, torch.Tensor]],
    training: TrimmerTraining,
    random: np.random.Generator,
    started: float,
    log: list[dict[str, float]],
    progress: Callable[[int, dict[str, float]], None] | None,
) -> int:
    """The hidden layer, on what the linear map leaves over; how many steps it took."""
    assert trimmer.inner is not None
    assert trimmer.outer is not None
    of_rest = [*trimmer.inner.parameters(), *trimmer.outer.parameters()]
    optimizer = torch.optim.AdamW(of_rest, lr=training.learning_rate, weight_decay=training.weight_decay)
    best, least, late, step = copy.deepcopy(trimmer.state_dict()), log[0]["error"], 0, 0
    while step < training.steps and late < training.patience:
        chosen = random.integers(len(train), size=training.batch)
        loss = torch.stack([_error(trimmer, *train[at]) for at in chosen]).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step += 1
        out_of_time = training.minutes is not None and (time.monotonic() - started) / 60 > training.minutes
        if step % training.check_every == 0 or step == training.steps or out_of_time:
            log.append({"step": float(step), "loss": float(loss.detach()), **_found(trimmer, fit)})
            if progress is not None:
                progress(step, log[-1])
            late += 1
            if log[-1]["error"] < least:
                best, least, late = copy.deepcopy(trimmer.state_dict()), log[-1]["error"], 0
        if out_of_time:
            break
    trimmer.load_state_dict(best)
    return step


def figures_of(
    trimmer: Trimmer, texts: Sequence[AttendedText], split: str, training: TrimmerTraining
) -> dict[str, float]:
    """On a split's blocks: R^2, and of each kind of attention the share that an eighth of a block's tokens receive,
    those that are worth most.
    """
    with torch.no_grad():
        blocks = [(trimmer.normal(states), target) for states, target in _blocks(texts, split, training)]
    return {**_found(trimmer, blocks), **kept_shares(trimmer, texts, split)} if blocks else {}


@torch.no_grad()
def kept_shares(
    trimmer: Trimmer, texts: Sequence[AttendedText], split: str, count: int = BLOCK_TOKENS // 8
) -> dict[str, float]:
    """Of each kind of attention to a block, the share that `count` tokens receive: those that score highest."""
    shares: dict[str, list[float]] = {}
    for text in texts:
        if text.text.split != split:
            continue
        for states, targets in zip(
            torch.split(text.states, BLOCK_TOKENS), torch.split(text.targets, BLOCK_TOKENS), strict=True
        ):
            scores = trimmer.scores(states)
            top = torch.topk(scores, min(count, len(scores))).indices
            for at, name in enumerate(TARGETS):
                attention = targets[:, at].exp()
                if not attention.isnan().any():
                    shares.setdefault(name, []).append(float(attention[top].sum() / attention.sum()))
    return {name: float(np.mean(of)) for name, of in shares.items()}


def _blocks(
    texts: Sequence[AttendedText], split: str, training: TrimmerTraining
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """States [BLOCK_TOKENS, width] and what each token is worth [BLOCK_TOKENS], of a split."""
    return [
        (states.float(), worth(targets, training.weights))
        for text in texts
        if text.text.split == split
        for states, targets in zip(
            torch.split(text.states, BLOCK_TOKENS), torch.split(text.targets, BLOCK_TOKENS), strict=True
        )
    ]


def _normalise(
    trimmer: Trimmer, blocks: Sequence[tuple[torch.Tensor, torch.Tensor]], random: np.random.Generator
) -> None:
    """Each number centred and scaled, as the texts have it; by what lies in between, for a few are of another size."""
    states = torch.cat([states for states, _ in blocks])
    chosen: npt.NDArray[np.int64] = np.sort(random.choice(len(states), min(_SAMPLED_ROWS, len(states)), replace=False))
    sample = states[torch.from_numpy(chosen)].sort(dim=0).values
    low, middle, high = (sample[int(share * (len(sample) - 1))] for share in (0.1587, 0.5, 0.8413))
    trimmer.center.copy_(middle)
    trimmer.scale.copy_(2 / (high - low).clamp(min=1e-4))


def _error(trimmer: Trimmer, normal: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (trimmer.logits(normal) - target).square().mean()


@torch.no_grad()
def _found(trimmer: Trimmer, blocks: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    error = float(torch.stack([_error(trimmer, *block) for block in blocks]).mean())
    every = torch.cat([target for _, target in blocks])
    return {"error": error, "R2": 1 - error / float(every.var(correction=0))}
