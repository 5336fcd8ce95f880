"""Train the KV writer: behind a block's anchors, a frozen model is to say what it says behind the whole block.

The loss is the Kullback-Leibler divergence to the model that sees everything, and cross entropy, over text behind 1 to
8 evicted blocks. Blocks of other books are among them, as a writer that was trained on single blocks fails on mixed
ones (Cartridges at Scale, arXiv 2606.04557). All compression ratios are trained at once. Anchors stand one after the
other, as they do in a frame, wherever they stood in the text. No lesson repeats the text itself, as that hurts answers
(SAC, arXiv 2510.08907).
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from everlong.models.pack import PackPart, part_in
from everlong.models.rope import rope_table, rotated
from everlong.models.soft_tokens import after_kv, frozen
from everlong.parts.kv_writer.model import KV_WRITER, KvWriterNet, KvWriterSettings
from everlong.parts.latents import LatentSettings
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong_lab.corpora.boundaries import books_of
from everlong_lab.corpora.evicted import BLOCKS, FOLLOWING, evicted_texts
from everlong_lab.corpora.record import Record
from everlong_lab.parts.latents import normalise
from everlong_lab.training.distillation import EvictedRead, log_probs_of, read_evicted
from everlong_lab.training.loop import LoopSettings, Losses, TrainingResult, learn
from everlong_lab.training.run import Run, before_and_after, two_splits

if TYPE_CHECKING:
    from everlong.parts.trimmer.model import TrimmerNet

_SAMPLED_READS = 4  # samples for the scale of keys and values
_READER = {"width": 128, "depth": 1, "inner": 256}  # small: maps to every layer's keys come on top
_MOST_ANCHORS = 256  # in a lesson: it has fewer blocks where each has many anchors


@dataclasses.dataclass(frozen=True)
class Training(LoopSettings):
    """Train the KV writer, which puts more into the keys and values of the tokens that the Trimmer keeps of a block."""

    text: tuple[pathlib.Path, ...] = ()  # books to read; by default the shipped ones
    samples: int = 48  # number of streams of eight blocks to draw from the books
    # Numbers of tokens to keep of a block of 512, by commas; one is drawn each time.
    tokens: tuple[int, ...] = (4, 8, 16, 32, 64, 128)
    cross_entropy: float = 0.3  # weight of the cross entropy beside the divergence
    following: int = 128  # number of tokens behind the blocks that a lesson covers
    # Numbers of blocks of other books to put first, by commas; one is drawn each time
    distractors: tuple[int, ...] = (0, 0, 1, 2)


def train(run: Run, training: Training) -> dict[str, PackPart]:
    """Run `everlong train kv-writer`, with the pack's Trimmer; raises EverlongError where it has none."""
    from everlong.parts.trimmer.model import TRIMMER, TrimmerNet

    trimmer = TrimmerNet.of_part(part_in(run.pack, TRIMMER, "Trimmer"))
    texts = evicted_texts(run.tokenizer, books_of(training.text), samples=training.samples, seed=training.seed)
    return train_on(run, texts, trimmer, training)


def train_on(
    run: Run,
    texts: Sequence[Record],
    trimmer: TrimmerNet,
    training: Training,
    *,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, PackPart]:
    """Train on these texts as the writer does (parts/writer/train.py), for the tokens that the Trimmer keeps.

    The Trimmer's layers are read.
    """
    layers = trimmer.settings.layers
    reads = read_evicted(run.model, texts, layers, run.work / "streams", with_kv=True, progress=run.progress)
    kv_layers, kv_heads, _, head_dim = reads[0].sinks()[0].shape
    reader = LatentSettings(layers, run.hidden_size, **{**_READER, **(settings or {})})
    config = KvWriterSettings(reader, kv_layers, kv_heads, head_dim)
    writer, learned = KvWriterTrainer(run, reads, trimmer, config, training).train()
    figures = {"held out, in nats a token": before_and_after(learned)}
    return {KV_WRITER: writer.part(run.made(training, learned, figures, **log_probs_of(texts)))}


@dataclasses.dataclass
class KvWriterTrainer:
    """One training over streams that were read with keys.

    Raises ValueError without any to train on or to hold out.
    """

    run: Run
    reads: Sequence[EvictedRead]
    trimmer: TrimmerNet
    config: KvWriterSettings
    training: Training

    def __post_init__(self) -> None:
        self._model, self._table = self.run.model, rope_table(self.run.model.config)
        self._train, self._fit = two_splits(
            "a writer is trained on some texts", self.reads, lambda read: read.text.split
        )

    def train(self) -> tuple[KvWriterNet, TrainingResult]:
        """Train, from the last checkpoint where there is one.

        One seed, machine and number of threads give the same bits.
        """
        writer = KvWriterNet.untrained(self.config, self.training.seed)
        normalise(writer.reader, self._model, self._train)
        self._size(writer)
        points = self.run.work / "kv-checkpoint"
        with frozen(self._model):
            learned = learn(
                writer, self._lesson, self._held_out, self.training, checkpoints=points, progress=self.run.check
            )
        return writer.eval(), learned

    @torch.no_grad()
    def _size(self, writer: KvWriterNet) -> None:
        """Set the scales: the standard deviation of every number of the keys and values."""
        blocks = [read.kv(0) for read in self._train[:_SAMPLED_READS]]
        for which, scale in enumerate((writer.k_scale, writer.v_scale)):
            scale.copy_(torch.cat([block[which] for block in blocks], dim=2).std(dim=2).clamp(min=1e-4))

    def _lesson(self, writer: Any, number: int, random: np.random.Generator, losses: Losses) -> torch.Tensor:
        training = self.training
        read = self._train[int(random.integers(len(self._train)))]
        anchors = int(random.choice(training.tokens))
        blocks = int(random.integers(1, max(1, min(BLOCKS, _MOST_ANCHORS // anchors)) + 1))
        first = int(random.integers(BLOCKS - blocks + 1)) if blocks < BLOCKS else 0
        strange = int(random.choice(training.distractors))
        other = self._train[int(random.integers(len(self._train)))]
        # Written are the nearest blocks before the place; what came before them is gone.
        written = [self._written(writer, read, range(first, first + blocks), anchors)]
        if strange and other is not read:
            chosen = sorted(int(at) for at in random.choice(BLOCKS, strange, replace=False))
            written.insert(0, self._written(writer, other, chosen, anchors))
        divergence, entropy = self._behind(read, first + blocks, written, training.following)
        return losses.record("KL", divergence) + training.cross_entropy * entropy

    def _written(
        self, writer: Any, read: EvictedRead, blocks: Sequence[int], anchors: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the un-rotated keys and values of some blocks of a text, [L, Hkv, blocks * anchors, D] each."""
        from everlong.parts.trimmer.model import tokens_to_keep

        states = read.states(max(blocks) + 1)[list(blocks)]
        device = self._model.device
        chosen = torch.stack([tokens_to_keep(self.trimmer.scores(own), anchors) for own in states])
        k, v = (torch.stack(rows) for rows in zip(*(read.kv(block) for block in blocks), strict=True))
        found = writer(states.to(device), k.to(device), v.to(device), chosen.to(device))
        own_k, own_v = (rows.permute(1, 2, 0, 3, 4).flatten(2, 3) for rows in found)
        return own_k, own_v

    def _behind(
        self,
        read: EvictedRead,
        blocks: int,
        written: Sequence[tuple[torch.Tensor, torch.Tensor]],
        following: int = FOLLOWING,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ids = read.text.behind(blocks)[: following + 1]
        k, v = (torch.cat(rows, dim=2) for rows in zip(*written, strict=True))
        places = SINK_TOKENS + torch.arange(k.shape[2], device=k.device)
        sinks = [rows.to(k.device, torch.float32) for rows in read.sinks()]
        k, v = torch.cat([sinks[0], rotated(k, places, self._table)], dim=2), torch.cat([sinks[1], v], dim=2)
        return read.taught(blocks).losses(after_kv(self._model, k, v, ids[:-1], following)[0], ids[1:])

    def _held_out(self, writer: Any) -> float:
        """Return the mean KL on held-out texts, behind all blocks and behind the newest two."""
        found = [
            float(self._behind(read, BLOCKS, [self._written(writer, read, range(first, BLOCKS), anchors)])[0])
            for read in self._fit
            for first, anchors in ((0, 8), (BLOCKS - 2, BLOCK_TOKENS // 8))
        ]
        return sum(found) / len(found)
