"""Trains `<RETRIEVE>` (parts/retrieve): a model says it at the end of a question whose answer has left the frame.

The one-GPU design, 3.2.3. What stands in a frame is the end of a story, or a stretch of a book in which facts were
planted. Behind it come a question whose answer stands there, one whose answer stood before it or is of another text,
and a turn of a dialogue that needs neither. The frame is the model's own, without gradients; the row and the maps learn
on the questions alone, each frame's three in one forward.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from everlong.data import Book
from everlong.data.qa import qa_dialogues
from everlong.models.low_rank import Adapter, AdapterSettings, adapted_layers
from everlong.models.releases import cache_argument
from everlong.models.soft import frozen
from everlong.parts.retrieve.at_work import Retrieving
from everlong.parts.retrieve.model import RetrieveRow, RetrieveSettings
from everlong.text.prompt import build_prompt
from everlong.training.attended import SINK_TOKENS, excerpt, sinks_of, story_tokens
from everlong.training.data import Pairs, Split
from everlong.training.loop import Learned, LoopSettings, Losses, Told, learn
from everlong.training.planted import draw_planted, with_statements

Need = Literal["evicted", "resident", "none"]
NEEDS: tuple[Need, ...] = ("evicted", "resident", "none")
_PLANTED = 2  # facts a stretch of a book: one is asked about, the other shows that being planted says nothing
_LEAST_SECTIONS = 4  # of a story whose end is a frame
_DIALOGUES: dict[Split, str] = {"train": "tiage-train", "fit": "tiage-train", "test": "tiage-dev"}
_MAPS_SCALE = 0.5


@dataclasses.dataclass(frozen=True)
class AskedOfFrame:
    words: str
    need: Need  # of its answer: it left the frame, it is there, or there is none


@dataclasses.dataclass(frozen=True)
class FrameText:
    """What a frame holds, ids [n] with the sinks first, and a question of each need."""

    name: str
    split: Split
    ids: torch.Tensor
    asked: tuple[AskedOfFrame, ...]


@dataclasses.dataclass(frozen=True)
class RetrieveTraining(LoopSettings):
    """How it is done."""

    steps: int = 100
    batch: int = 4  # frames
    learning_rate: float = 5e-4
    check_every: int = 20
    rank: int = 4
    tokens: tuple[int, ...] = (192, 384, 768)  # of a frame, one number drawn


@dataclasses.dataclass(frozen=True)
class TrainedRetrieve:
    row: RetrieveRow
    maps: Adapter
    learned: Learned


def frame_texts(
    tokenizer: Any,
    books: Sequence[Book],
    pairs: Pairs,
    *,
    count: int,
    split: Split,
    tokens: Sequence[int] = RetrieveTraining.tokens,
    seed: int = 0,
) -> list[FrameText]:
    """So many, stories of the split and books by turns. ValueError where there are neither stories nor books for it."""
    random = np.random.default_rng((seed, ("train", "fit", "test").index(split)))
    turns = [words for _, dialogue in qa_dialogues(_DIALOGUES[split]) for words, _ in dialogue if len(words) > 12]
    stories, stretches = (
        _of_stories(tokenizer, pairs, split, tokens, random),
        _of_books(tokenizer, books, tokens, random),
    )
    found = []
    for number in range(count):
        name, ids, resident, evicted = next(stretches if number % 2 else stories)
        none = turns[int(random.integers(len(turns)))]
        asked = tuple(AskedOfFrame(*one) for one in zip((evicted, resident, none), NEEDS, strict=True))
        found.append(FrameText(name, split, ids, asked))
    return found


_Frame = tuple[str, torch.Tensor, str, str]


def _of_stories(
    tokenizer: Any, pairs: Pairs, split: Split, tokens: Sequence[int], random: np.random.Generator
) -> Iterator[_Frame]:
    asked: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
    for question in pairs.questions:
        asked.setdefault(question.text, []).append((question.words, question.pieces))
    there = [
        at
        for at, text in enumerate(pairs.texts)
        if text.split == split and text.origin == "fairytale" and len(text.pieces) >= _LEAST_SECTIONS and at in asked
    ]
    if len(there) < 2:
        raise ValueError(f"there are {len(there)} stories of the split {split}, expected two or more")
    while True:
        for at in random.permutation(there):
            ids, spans = story_tokens(tokenizer, pairs.texts[at].pieces)
            last = int(random.integers(_LEAST_SECTIONS // 2, len(spans)))
            end = spans[last][1]
            begin = max(SINK_TOKENS, end - int(random.choice(tokens)))
            own = [(words, [spans[piece] for piece in pieces]) for words, pieces in asked[int(at)]]
            resident = [words for words, of in own if all(begin <= one[0] and one[1] <= end for one in of)]
            if not resident:
                continue
            evicted = [words for words, of in own if all(one[1] <= begin for one in of)]
            if not evicted or random.random() < 0.3:  # of another story
                other = int(random.choice([one for one in there if one != at]))
                evicted = [words for words, _ in asked[other]]
            frame = torch.cat([ids[:SINK_TOKENS], ids[begin:end]])
            pick = (one[int(random.integers(len(one)))] for one in (resident, evicted))
            yield (pairs.texts[at].name, frame, *pick)


def _of_books(
    tokenizer: Any, books: Sequence[Book], tokens: Sequence[int], random: np.random.Generator
) -> Iterator[_Frame]:
    if not books:
        raise ValueError("there are no books")
    while True:
        for at in random.permutation(len(books)):
            length = int(random.choice(tokens))
            try:
                text = excerpt(tokenizer, books[at], length + SINK_TOKENS, random)
            except ValueError:
                continue
            facts = draw_planted(random, _PLANTED + 1)
            statements = [fact.statement for fact in facts[:_PLANTED]]
            ids, _, _ = with_statements(tokenizer, text[SINK_TOKENS:], statements, length, random)
            frame = torch.cat([sinks_of(tokenizer, text), ids])
            yield books[at].name, frame, facts[0].question, facts[_PLANTED].question


class _Learning(torch.nn.Module):
    def __init__(self, row: RetrieveRow, maps: Adapter) -> None:
        super().__init__()
        self.row, self.maps = row, maps

    def forward(self, state: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        odds: torch.Tensor = self.row(state, logits)
        return odds


def odds_of(model: Any, tokenizer: Any, retrieving: Retrieving, frame: FrameText, row: Any = None) -> torch.Tensor:
    """Log odds [questions] that it is said at the end of each question to a frame; `row` in place of its own."""
    prompts = [build_prompt(tokenizer, asked.words).ids for asked in frame.asked]
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
    with retrieving.listening() as heard:
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


def train_on(
    model: Any,
    tokenizer: Any,
    frames: Sequence[FrameText],
    training: RetrieveTraining,
    *,
    checkpoints: pathlib.Path | None = None,
    progress: Told | None = None,
) -> TrainedRetrieve:
    """From the last checkpoint where there is one. ValueError without frames to train on or to hold out."""
    train, fit = ([frame for frame in frames if frame.split == split] for split in ("train", "fit"))
    if not train or not fit:
        raise ValueError("<RETRIEVE> is trained on some frames and stopped by others; one of the two has none")
    row = RetrieveRow(RetrieveSettings(model.config.get_text_config(decoder=True).hidden_size)).to(model.device)
    maps = Adapter(AdapterSettings(training.rank, _MAPS_SCALE), adapted_layers(model), seed=training.seed)
    maps = maps.to(model.device)
    retrieving = Retrieving(row, maps, model)
    with torch.no_grad():  # as likely at first as one in three is right
        row.row.bias.fill_(-float(odds_of(model, tokenizer, retrieving, fit[0]).mean()) - float(np.log(2)))

    def loss_of(learning: Any, frame: FrameText) -> torch.Tensor:
        odds = odds_of(model, tokenizer, retrieving, frame, learning)
        wanted = torch.tensor([asked.need == "evicted" for asked in frame.asked], device=odds.device)
        share = torch.where(wanted, 0.5 / wanted.sum().clamp(min=1), 0.5 / (~wanted).sum().clamp(min=1))
        return (share * torch.nn.functional.softplus(torch.where(wanted, -odds, odds))).sum()

    def lesson(learning: Any, number: int, random: np.random.Generator, said: Losses) -> torch.Tensor:
        loss = loss_of(learning, train[int(random.integers(len(train)))])
        said.setdefault("loss", []).append(float(loss.detach()))
        return loss

    def held_out(learning: Any) -> float:
        return sum(float(loss_of(learning, frame)) for frame in fit) / len(fit)

    learning = _Learning(row, maps)
    with frozen(model):
        learned = learn(learning, lesson, held_out, training, checkpoints=checkpoints, progress=progress)
    learning.load_state_dict(learned.state)
    return TrainedRetrieve(row.cpu().eval(), maps.cpu(), learned)
