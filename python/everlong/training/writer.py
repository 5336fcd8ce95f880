"""Trains the writer (learned/writer.py): what a frozen model says behind D is to be what it says behind the blocks.

The four-MI100 design, 3.3.1, and what newer work adds (findings-2). Three lessons, of which every step has some:

- *behind*: text behind 1 .. 8 evicted blocks, of which it sees D alone, blocks of other books among them; Kullback-
  Leibler divergence to the model that sees all, and cross entropy (training/evicted.py);
- *again*, Head B: a page from its rows of D, and a stretch of a block from all of D;
- *why*, Head A: whether a block answers a question, as a decision and in words, and what it answers (training/told.py).

Gradients pass through the model to D; its weights stay. It begins with the tokens that a Trimmer would keep of each
run, as words: means of embeddings are nothing that a frozen model has met, and what it says behind them is far off.
What the writer reads has tokens missing at random, as a block does that was trimmed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from everlong.learned.latents import LatentReader
from everlong.learned.trimmer import Trimmer
from everlong.learned.writer import Writer, WriterConfig
from everlong.models.soft import behind_vectors, embedded, frozen, states_behind_vectors
from everlong.text.encoding import encode
from everlong.training.attended import BLOCK_TOKENS, SINK_TOKENS
from everlong.training.evicted import BLOCKS, FOLLOWING, EvictedRead
from everlong.training.loop import Learned, LoopSettings, Losses, Told, learn
from everlong.training.told import Exercise, ToldBlock

_SAMPLED_READS = 8  # for center and scale
_PAGE_TOKENS = 64  # that are said again
_SAMPLED_EMBEDDINGS = 4096
_DECISION_RIDGE = 0.01
_AGAIN = "The same again:\n\n"


@dataclasses.dataclass(frozen=True)
class WriterTraining(LoopSettings):
    """How it is done; the defaults are those of the shipped pack."""

    tokens: tuple[int, ...] = (4, 8, 16, 32)  # N, one drawn for each lesson
    cross_entropy: float = 0.3  # beside the divergence
    following: int = 128  # tokens behind the blocks that a lesson is about, the first ones
    again: float = 0.0  # lessons of Head B for each that goes on behind blocks
    why: float = 0.0  # and of Head A
    distractors: tuple[int, ...] = (0, 0, 1, 2)  # blocks of other books before the blocks, one number drawn
    sharpness: float = 20.0  # of a Trimmer's scores, with which it begins where there is a Trimmer
    missing: float = 0.1  # share of a block's tokens that the writer does not see
    gradient_checkpointing: bool = False


@dataclasses.dataclass(frozen=True)
class Words:
    """What the model is told behind D, as ids [n] int64."""

    again: torch.Tensor  # before a text that is to be said again


def words_of(tokenizer: Any) -> Words:
    return Words(encode(tokenizer, _AGAIN))


@dataclasses.dataclass(frozen=True)
class ToldRead:
    """A block with questions, as it was read."""

    block: ToldBlock
    states: torch.Tensor  # [BLOCK_TOKENS, width] bf16
    exercises: tuple[Exercise, ...]


@dataclasses.dataclass(frozen=True)
class TrainedWriter:
    writer: Writer
    learned: Learned


class WriterTrainer:
    """One training over streams that were read; ValueError without any to train on or to hold out."""

    def __init__(
        self,
        model: Any,
        reads: Sequence[EvictedRead],
        config: WriterConfig,
        training: WriterTraining,
        words: Words,
        told: Sequence[ToldRead] = (),
        *,
        trimmer: Trimmer | None = None,
        checkpoints: pathlib.Path | None = None,
        progress: Told | None = None,
    ) -> None:
        self._model, self._config, self._training, self._words = model, config, training, words
        self._trimmer = trimmer
        self._told = [one for one in told if one.block.split == "train"]
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
        writer = Writer.untrained(self._config, self._training.seed)
        normalise(writer.reader, self._model, self._train)
        if self._trimmer is not None:
            writer.count_as(self._trimmer, self._training.sharpness)
        with frozen(self._model), _checkpointed(self._model, self._training.gradient_checkpointing):
            learned = learn(
                writer,
                self._lesson,
                self._held_out,
                self._training,
                checkpoints=self._checkpoints,
                progress=self._progress,
            )
        best = Writer(self._config)
        best.load_state_dict(learned.state)
        if self._told:
            fit_decision(best.eval(), self._model, self._told)
        return TrainedWriter(best.eval(), learned)

    # --- a step

    def _lesson(self, writer: Any, random: np.random.Generator, said: Losses) -> torch.Tensor:
        training = self._training
        read = self._train[int(random.integers(len(self._train)))]
        tokens = int(random.choice(training.tokens))
        why = training.why if self._told else 0.0
        drawn = random.random() * (1 + training.again + why)
        if drawn >= 1:
            name = "again" if drawn < 1 + training.again else "why"
            loss = self._again(writer, read, tokens, random) if name == "again" else self._why(writer, tokens, random)
            said.setdefault(name, []).append(float(loss.detach()))
            return loss
        blocks = int(random.integers(1, BLOCKS + 1))
        strange = int(random.choice(training.distractors))
        other = self._train[int(random.integers(len(self._train)))]
        details = [self._details(writer, read, range(blocks), tokens, random)]
        if strange and other is not read:
            chosen = sorted(int(at) for at in random.choice(BLOCKS, strange, replace=False))
            details.insert(0, self._details(writer, other, chosen, tokens, random))
        divergence, entropy = self._behind(read, blocks, torch.cat(details, dim=1), training.following)
        said.setdefault("KL", []).append(float(divergence.detach()))
        return divergence + training.cross_entropy * entropy

    def _why(self, writer: Any, tokens: int, random: np.random.Generator) -> torch.Tensor:
        """Whether a block answers a question, and cross entropy of why, and of what it answers."""
        one = self._told[int(random.integers(len(self._told)))]
        at = int(random.integers(len(one.exercises)))
        right = one.block.asked[at].kind == "right"
        exercise, own = one.exercises[at], writer_in(writer)
        details = writer(
            one.states[None].to(self._model.device), embedded(self._model, one.block.ids[SINK_TOKENS:])[None], tokens
        )
        before = torch.cat([one.block.ids[:SINK_TOKENS], self._opening])
        behind = torch.cat([self._closing, exercise.prompt, exercise.reply[:-1]])
        logits, states = states_behind_vectors(self._model, before, details, behind, len(exercise.reply))
        reply = exercise.reply.to(logits.device)
        words = -logits[0].log_softmax(dim=-1).gather(-1, reply[:, None]).mean()
        decision = own.decision(states[0, 0]) * (1 if right else -1)
        # One block in three is right: it counts as much as both others.
        return words - torch.nn.functional.logsigmoid(decision) * (1.5 if right else 0.75)

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

    def _behind(
        self, read: EvictedRead, blocks: int, details: torch.Tensor, following: int = FOLLOWING
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ids = read.text.behind(blocks)[: following + 1]
        before = torch.cat([read.text.ids[:SINK_TOKENS], self._opening])
        logits = behind_vectors(self._model, before, details, torch.cat([self._closing, ids[:-1]]), following)
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

    def _held_out(self, writer: Any) -> float:
        """KL behind all blocks and behind half of them, of texts that nothing is trained on."""
        found = [
            float(self._behind(read, blocks, self._details(writer, read, range(blocks), tokens))[0])
            for read in self._fit
            for blocks, tokens in ((BLOCKS, 8), (BLOCKS // 2, 32))
        ]
        return sum(found) / len(found)


def writer_in(wrapped: Any) -> Writer:
    """Of what `accelerate` may have wrapped."""
    own: Writer = getattr(wrapped, "module", wrapped)
    return own


@torch.no_grad()
def normalise(reader: LatentReader, model: Any, reads: Sequence[EvictedRead]) -> None:
    """Each number of the states centred and scaled, as the texts have it, by what lies in between; and how large the
    model's embeddings are.
    """
    rows = torch.cat([read.states(1)[0, ::4].float() for read in reads[:_SAMPLED_READS]]).sort(dim=0).values
    low, middle, high = (rows[int(share * (len(rows) - 1))] for share in (0.1587, 0.5, 0.8413))
    reader.center.copy_(middle)
    reader.scale.copy_(2 / (high - low).clamp(min=1e-4))
    weight = model.get_input_embeddings().weight
    ids = torch.linspace(0, len(weight) - 1, min(_SAMPLED_EMBEDDINGS, len(weight))).long()
    reader.embedding_scale.copy_(embedded(model, ids).float().square().mean().sqrt())


@torch.no_grad()
def decided_states(
    writer: Writer, model: Any, told: Sequence[ToldRead], tokens: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's last state behind D of each block and each question to it [n, hidden size] fp32, where it decides;
    and whether the block is right [n] bool.
    """
    states, right = [], []
    for one in told:
        ids = one.block.ids
        details = writer.details_of(one.states[None], embedded(model, ids[SINK_TOKENS:])[None], tokens)
        for asked, own in zip(one.block.asked, one.exercises, strict=True):
            states.append(states_behind_details(writer, model, ids[:SINK_TOKENS], details, own.prompt, 1)[1][0, 0])
            right.append(asked.kind == "right")
    return torch.stack(states).float(), torch.tensor(right)


def states_behind_details(
    writer: Writer, model: Any, sinks: torch.Tensor, details: torch.Tensor, ids: torch.Tensor, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`states_behind_vectors` of D [B, n, E] between its marks."""
    opening, closing = (torch.tensor(m, dtype=torch.int64) for m in (writer.config.opening, writer.config.closing))
    before, behind = torch.cat([sinks, opening]), torch.cat([closing, ids])
    return states_behind_vectors(model, before, details, behind, rows)


def fit_decision(writer: Writer, model: Any, told: Sequence[ToldRead], tokens: int | None = None) -> None:
    """Head A's decision for a D that is settled: logistic regression with a ridge, both classes weighing the same."""
    states, right = decided_states(writer, model, told, tokens)
    middle, size = states.mean(dim=0), states.std(dim=0).clamp(min=1e-4)
    normal, sign = (states - middle) / size, torch.where(right, 1.0, -1.0)
    share = torch.where(right, 0.5 / right.sum().clamp(min=1), 0.5 / (~right).sum().clamp(min=1))
    weight = torch.zeros(states.shape[1], requires_grad=True)
    bias = torch.zeros((), requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        solver.zero_grad()
        lost = (share * torch.nn.functional.softplus(-sign * (normal @ weight + bias))).sum()
        lost = lost + _DECISION_RIDGE * weight.square().sum()
        torch.autograd.backward(lost)
        return lost

    solver.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        writer.decide.weight.copy_((weight / size)[None])
        writer.decide.bias.copy_((bias - (weight / size * middle).sum())[None])


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
