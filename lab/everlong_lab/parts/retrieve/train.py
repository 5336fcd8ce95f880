"""Train `<RETRIEVE>`: a model says it at the end of a question whose answer has left the frame.

A frame holds the end of a story, or a stretch of a book in which facts were planted. Behind it come three questions.
The answer to one stands in the frame. The answer to another stood before the frame or is of another text. The third is
a turn of a dialogue that needs neither. The frame is the model's own, without gradients. The row and the maps learn on
the questions alone, each frame's three in one forward pass.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from everlong.models.low_rank import LowRankMaps, MapSettings, mapped_layers
from everlong.models.pack import PackPart
from everlong.models.releases import cache_argument
from everlong.models.rng import isolated_rng
from everlong.models.soft_tokens import frozen
from everlong.parts.retrieve.model import RETRIEVE, RetrieveRow, RetrieveSettings
from everlong.parts.retrieve.runtime import RetrieveRuntime
from everlong.text.prompt import build_prompt
from everlong_lab.corpora.boundaries import books_of
from everlong_lab.corpora.frames import FRAME_TOKENS, frame_texts
from everlong_lab.corpora.pairs import Split, load_pairs
from everlong_lab.corpora.record import Record
from everlong_lab.training.loop import LoopSettings, Losses, TrainingResult, learn
from everlong_lab.training.run import Run, before_and_after, two_splits

_MAPS_SCALE = 0.5


@dataclasses.dataclass(frozen=True)
class Training(LoopSettings):
    """Train <RETRIEVE>: a model learns to say it at the end of a question whose answer has left the frame."""

    text: tuple[pathlib.Path, ...] = ()  # books to plant facts in; by default the shipped ones
    frames: int = 400  # number of frames of stories and books, with three questions each
    tokens: tuple[int, ...] = FRAME_TOKENS  # numbers of tokens in a frame, by commas; one is drawn each time
    steps: int = 100  # number of training steps
    batch: int = 4  # frames in each step
    learning_rate: float = 5e-4
    rank: int = 4  # rank of the low-rank maps


def train(run: Run, training: Training) -> dict[str, PackPart]:
    """Run `everlong train retrieve`."""
    books, pairs = books_of(training.text), load_pairs(["fairytale"])

    def some(split: Split, count: int) -> list[Record]:
        return frame_texts(
            run.tokenizer, books, pairs, count=count, split=split, tokens=training.tokens, seed=training.seed
        )

    frames = [*some("train", training.frames), *some("fit", max(2, training.frames // 12))]
    return train_on(run, frames, training)


def train_on(run: Run, frames: Sequence[Record], training: Training) -> dict[str, PackPart]:
    """Train on these frames. A run that was cut short goes on where it stopped."""
    row, maps, learned = fit(run, frames, training)
    made = run.made(
        training,
        learned,
        {"held out, nats": before_and_after(learned)},
        data={split: sum(frame.split == split for frame in frames) for split in ("train", "fit")},
        texts=sorted({frame.name for frame in frames if frame.split == "train"}),
    )
    return {RETRIEVE: row.part_with(maps, made)}


class _TrainedModules(torch.nn.Module):
    def __init__(self, row: RetrieveRow, maps: LowRankMaps) -> None:
        super().__init__()
        self.row, self.maps = row, maps

    def forward(self, state: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        odds: torch.Tensor = self.row(state, logits)
        return odds


def odds_of(model: Any, tokenizer: Any, retrieving: RetrieveRuntime, frame: Record, row: Any = None) -> torch.Tensor:
    """Return the log odds [questions] that it is said at the end of each question to a frame.

    `row` replaces the row of `retrieving`.
    """
    prompts = [build_prompt(tokenizer, asked.words).ids for asked in frame.questions]
    longest = max(map(len, prompts))
    ids = torch.stack([torch.nn.functional.pad(one, (0, longest - len(one))) for one in prompts])
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(
            input_ids=frame.ids[None].to(model.device),
            **{cache_argument(model): cache},
            use_cache=True,
            logits_to_keep=1,
        )
        cache.batch_repeat_interleave(len(prompts))
    places = (len(frame.ids) + torch.arange(longest, device=model.device))[None].expand(len(prompts), -1)
    with retrieving.recording_states() as heard:
        out = model(
            input_ids=ids.to(model.device),
            position_ids=places,
            **{cache_argument(model): cache},
            use_cache=True,
        )
    last = torch.tensor([len(one) - 1 for one in prompts], device=model.device)
    each = torch.arange(len(prompts), device=model.device)
    odds: torch.Tensor = (row or retrieving.row)(heard[-1][each, last], out.logits[each, last])
    return odds


@isolated_rng()
def fit(run: Run, frames: Sequence[Record], training: Training) -> tuple[RetrieveRow, LowRankMaps, TrainingResult]:
    """Train, from the last checkpoint where there is one.

    Raises ValueError without frames to train on or to hold out.
    """
    model, tokenizer = run.model, run.tokenizer
    train, held_out = two_splits("<RETRIEVE> is trained on some frames", frames, lambda frame: frame.split)
    row = RetrieveRow(RetrieveSettings(run.hidden_size)).to(model.device)
    maps = LowRankMaps(MapSettings(training.rank, _MAPS_SCALE), mapped_layers(model), seed=training.seed)
    maps = maps.to(model.device)
    retrieving = RetrieveRuntime(row, maps, model)
    with torch.no_grad():  # begin at one in three, the share that is right
        row.row.bias.fill_(-float(odds_of(model, tokenizer, retrieving, held_out[0]).mean()) - float(np.log(2)))

    def loss_of(learning: Any, frame: Record) -> torch.Tensor:
        odds = odds_of(model, tokenizer, retrieving, frame, learning)
        wanted = torch.tensor([asked.kind == "evicted" for asked in frame.questions], device=odds.device)
        share = torch.where(wanted, 0.5 / wanted.sum().clamp(min=1), 0.5 / (~wanted).sum().clamp(min=1))
        return (share * torch.nn.functional.softplus(torch.where(wanted, -odds, odds))).sum()

    def lesson(learning: Any, number: int, random: np.random.Generator, losses: Losses) -> torch.Tensor:
        return losses.record("loss", loss_of(learning, train[int(random.integers(len(train)))]))

    def lost(learning: Any) -> float:
        return sum(float(loss_of(learning, frame)) for frame in held_out) / len(held_out)

    points = run.work / "checkpoint"
    with frozen(model):
        learned = learn(_TrainedModules(row, maps), lesson, lost, training, checkpoints=points, progress=run.check)
    return row.cpu().eval(), maps.cpu(), learned
