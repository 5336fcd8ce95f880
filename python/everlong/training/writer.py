"""Trains the writer (learned/writer.py): what a frozen model says behind D is to be what it says behind the blocks.

The four-MI100 design, 3.3.1, and what newer work adds (findings-2). Three lessons, of which every step has some:

- *behind*: text behind 1 .. 8 evicted blocks, of which it sees D alone, blocks of other books among them; Kullback-
  Leibler divergence to the model that sees all, and cross entropy (training/evicted.py);
- *again*, Head B: a page from its rows of D, and a stretch of a block from all of D;
- *why*, Head A: whether a block answers a question, as a decision and in words, and what it answers (training/told.py).

Gradients pass through the model to D; its weights stay. What the writer reads has tokens missing at random, as a block
does that was trimmed.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from everlong.learned.writer import Writer, WriterConfig
from everlong.models.soft import behind_vectors, embedded, frozen
from everlong.text.encoding import encode
from everlong.training.attended import BLOCK_TOKENS, SINK_TOKENS
from everlong.training.evicted import BLOCKS, FOLLOWING, EvictedRead

_SAMPLED_READS = 8  # for center and scale
_PAGE_TOKENS = 64  # that are said again
_SAMPLED_EMBEDDINGS = 4096
_MARKS = ("\n\n[", "]\n\n")
_AGAIN = "The same again:\n\n"


@dataclasses.dataclass(frozen=True)
class WriterTraining:
    """How it is done; the defaults are those of the shipped pack."""

    steps: int = 400
    batch: int = 4  # lessons a step
    tokens: tuple[int, ...] = (4, 8, 16, 32)  # N, one drawn for each lesson
    learning_rate: float = 1e-3
    warmup: int = 20
    cross_entropy: float = 0.3  # beside the divergence
    again: float = 0.0  # lambda of Head B, and of every step's lessons about as large a share
    distractors: tuple[int, ...] = (0, 0, 1, 2)  # blocks of other books before the blocks, one number drawn
    missing: float = 0.1  # share of a block's tokens that the writer does not see
    check_every: int = 40  # steps; what came nearest on held-out texts is kept
    gradient_checkpointing: bool = False
    seed: int = 0
    minutes: float | None = None  # no step begins later
    threads: int | None = None


@dataclasses.dataclass(frozen=True)
class Words:
    """What the model is told behind D, as ids [n] int64."""

    again: torch.Tensor  # before a text that is to be said again


def words_of(tokenizer: Any) -> Words:
    return Words(encode(tokenizer, _AGAIN))


def marks_of(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids of what D stands between: brackets in plain words, which every tokenizer has."""
    opening, closing = (tuple(encode(tokenizer, mark).tolist()) for mark in _MARKS)
    return opening, closing


@dataclasses.dataclass(frozen=True)
class TrainedWriter:
    writer: Writer
    steps: int
    minutes: float
    log: tuple[dict[str, float], ...]  # at each check; the first one is of the untrained writer


class WriterTrainer:
    """One training over streams that were read; ValueError without any to train on or to hold out."""

    def __init__(
        self,
        model: Any,
        reads: Sequence[EvictedRead],
        config: WriterConfig,
        training: WriterTraining,
        words: Words,
        *,
        checkpoints: pathlib.Path | None = None,
        progress: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:
        self._model, self._config, self._training, self._words = model, config, training, words
        self._checkpoints, self._progress = checkpoints, progress
        self._train = [read for read in reads if read.text.split == "train"]
        self._fit = [read for read in reads if read.text.split == "fit"]
        if not self._train or not self._fit:
            raise ValueError("a writer is trained on some texts and stopped by others; one of the two has none")
        self._opening, self._closing = (
            torch.tensor(ids, dtype=torch.int64) for ids in (config.opening, config.closing)
        )

    def train(self) -> TrainedWriter:
        """From the last checkpoint where there is one; the same bits for one seed, machine and number of threads."""
        accelerate = importlib.import_module("accelerate")  # the extra "train"
        training = self._training
        if training.threads is not None:
            torch.set_num_threads(training.threads)
        accelerator = accelerate.Accelerator(cpu=not torch.cuda.is_available())
        writer = Writer.untrained(self._config, training.seed)
        normalise(writer, self._model, self._train[:_SAMPLED_READS])
        optimizer = torch.optim.AdamW(writer.parameters(), lr=training.learning_rate, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
        wrapped, optimizer = accelerator.prepare(writer, optimizer)
        state = Progress()
        accelerator.register_for_checkpointing(schedule, state)
        if self._checkpoints is not None and (self._checkpoints / "random_states_0.pkl").exists():
            accelerator.load_state(str(self._checkpoints))
        started, before = time.monotonic(), state.seconds
        with frozen(self._model), _checkpointed(self._model, training.gradient_checkpointing):
            if not state.log:
                self._check(wrapped, state, {})
            while state.step < training.steps and not self._late(state):
                random = np.random.default_rng((training.seed, state.step))
                said: dict[str, list[float]] = {}
                for _ in range(training.batch):
                    accelerator.backward(self._lesson(wrapped, random, said) / training.batch)
                accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                state.step += 1
                state.seconds = before + time.monotonic() - started
                state.add(said)
                if state.step % training.check_every == 0 or state.step == training.steps or self._late(state):
                    self._check(wrapped, state, state.taken())
                    if self._checkpoints is not None:
                        accelerator.save_state(str(self._checkpoints))
        best = Writer(self._config)
        best.load_state_dict(state.best or accelerator.unwrap_model(wrapped).state_dict())
        return TrainedWriter(best.eval(), state.step, state.seconds / 60, tuple(state.log))

    # --- a step

    def _rate(self, step: int) -> float:
        warm = min(1.0, (step + 1) / self._training.warmup)
        return warm * max(0.02, 0.5 * (1 + math.cos(math.pi * min(1.0, step / self._training.steps))))

    def _late(self, state: Progress) -> bool:
        return self._training.minutes is not None and state.seconds > 60 * self._training.minutes

    def _lesson(self, writer: Any, random: np.random.Generator, said: dict[str, list[float]]) -> torch.Tensor:
        training = self._training
        read = self._train[int(random.integers(len(self._train)))]
        tokens = int(random.choice(training.tokens))
        if random.random() < training.again / (1 + training.again):
            loss = self._again(writer, read, tokens, random)
            said.setdefault("again", []).append(float(loss.detach()))
            return loss
        blocks = int(random.integers(1, BLOCKS + 1))
        strange = int(random.choice(training.distractors))
        other = self._train[int(random.integers(len(self._train)))]
        details = [self._details(writer, read, range(blocks), tokens, random)]
        if strange and other is not read:
            chosen = sorted(int(at) for at in random.choice(BLOCKS, strange, replace=False))
            details.insert(0, self._details(writer, other, chosen, tokens, random))
        divergence, entropy = self._behind(read, blocks, torch.cat(details, dim=1))
        said.setdefault("KL", []).append(float(divergence.detach()))
        return divergence + training.cross_entropy * entropy

    def _details(
        self,
        writer: Any,
        read: EvictedRead,
        blocks: Sequence[int],
        tokens: int,
        random: np.random.Generator | None = None,
    ) -> torch.Tensor:
        """D [1, blocks * N, E] of some blocks of a text; with `random` some of its tokens are missing."""
        states = read.states(max(blocks) + 1)[list(blocks)].to(self._model.device)
        ids = read.text.ids[SINK_TOKENS : SINK_TOKENS + BLOCKS * BLOCK_TOKENS].view(BLOCKS, -1)[list(blocks)]
        embeddings = embedded(self._model, ids)
        if random is not None and self._training.missing > 0:
            count = BLOCK_TOKENS - int(random.integers(int(self._training.missing * 2 * BLOCK_TOKENS) + 1))
            kept = torch.from_numpy(np.sort(random.permutation(BLOCK_TOKENS)[:count]))
            states, embeddings = states[:, kept], embeddings[:, kept]
        found: torch.Tensor = writer(states, embeddings, tokens)
        return found.flatten(0, 1)[None]

    def _behind(self, read: EvictedRead, blocks: int, details: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ids = read.text.behind(blocks)
        before = torch.cat([read.text.ids[:SINK_TOKENS], self._opening])
        logits = behind_vectors(self._model, before, details, torch.cat([self._closing, ids[:-1]]), FOLLOWING)
        said = logits[0].log_softmax(dim=-1)
        entropy = -said.gather(-1, ids[1:, None].to(said.device)).mean()
        return read.taught(blocks).divergence(said), entropy

    def _again(self, writer: Any, read: EvictedRead, tokens: int, random: np.random.Generator) -> torch.Tensor:
        """Cross entropy of a page behind its rows of D, or of a stretch as long behind D of its block."""
        block, page = int(random.integers(BLOCKS)), int(random.integers(BLOCK_TOKENS // _PAGE_TOKENS))
        details = self._details(writer, read, [block], tokens)
        if random.random() < 0.5:
            page = page if random.random() < 0.5 else 0
            details = details[:, writer_in(writer).of_page(BLOCK_TOKENS, page, tokens)]
        first = SINK_TOKENS + block * BLOCK_TOKENS + page * _PAGE_TOKENS
        ids = read.text.ids[first : first + _PAGE_TOKENS]
        before = torch.cat([read.text.ids[:SINK_TOKENS], self._opening])
        behind = torch.cat([self._closing, self._words.again, ids[:-1]])
        logits = behind_vectors(self._model, before, details, behind, _PAGE_TOKENS)
        said = logits[0].log_softmax(dim=-1)
        return -said.gather(-1, ids[:, None].to(said.device)).mean()

    # --- between steps

    @torch.no_grad()
    def _check(self, writer: Any, state: Progress, lost: dict[str, float]) -> None:
        """KL behind all blocks and behind half of them, of texts that nothing is trained on."""
        found = [
            float(self._behind(read, blocks, self._details(writer, read, range(blocks), tokens))[0])
            for read in self._fit
            for blocks, tokens in ((BLOCKS, 8), (BLOCKS // 2, 32))
        ]
        held_out = sum(found) / len(found)
        state.log.append({"step": state.step, "minutes": state.seconds / 60, "held out": held_out, **lost})
        if state.best is None or held_out < state.best_score:
            state.best_score, state.best = held_out, copy.deepcopy(writer_in(writer).state_dict())
        if self._progress is not None:
            self._progress(state.step, state.log[-1])


class Progress:
    """What a checkpoint knows beside weights and optimizer."""

    def __init__(self) -> None:
        self.step = 0
        self.seconds = 0.0
        self.best: dict[str, Any] | None = None
        self.best_score = math.inf
        self.log: list[dict[str, float]] = []
        self.sums: dict[str, tuple[float, int]] = {}  # of losses since the last check

    def add(self, said: dict[str, list[float]]) -> None:
        for name, losses in said.items():
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = (total + sum(losses), count + len(losses))

    def taken(self) -> dict[str, float]:
        """The mean of each since this was asked last."""
        means = {name: total / count for name, (total, count) in self.sums.items()}
        self.sums = {}
        return means

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def writer_in(wrapped: Any) -> Writer:
    """Of what `accelerate` may have wrapped."""
    own: Writer = getattr(wrapped, "module", wrapped)
    return own


@torch.no_grad()
def normalise(writer: Writer, model: Any, reads: Sequence[EvictedRead]) -> None:
    """Each number of the states centred and scaled, as the texts have it, by what lies in between; and how large the
    model's embeddings are.
    """
    rows = torch.cat([read.states(1)[0, ::4].float() for read in reads]).sort(dim=0).values
    low, middle, high = (rows[int(share * (len(rows) - 1))] for share in (0.1587, 0.5, 0.8413))
    writer.reader.center.copy_(middle)
    writer.reader.scale.copy_(2 / (high - low).clamp(min=1e-4))
    weight = model.get_input_embeddings().weight
    ids = torch.linspace(0, len(weight) - 1, min(_SAMPLED_EMBEDDINGS, len(weight))).long()
    writer.reader.embedding_scale.copy_(embedded(model, ids).float().square().mean().sqrt())


@contextlib.contextmanager
def _checkpointed(model: Any, wanted: bool) -> Iterator[None]:
    """Activations are computed again on the way back, where that is wanted; models do that while they train."""
    if not wanted:
        yield
        return
    before = model.training
    # transformers 5.x renames it.
    name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    getattr(model, f"{name}_checkpointing_enable")({"use_reentrant": False})
    model.train()
    try:
        yield
    finally:
        getattr(model, f"{name}_checkpointing_disable")()
        model.train(before)
