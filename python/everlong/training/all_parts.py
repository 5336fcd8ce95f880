"""Every learned part of a model's pack, one after the other, within a time: what `everlong train all` does."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from everlong.corpora.attended import trim_texts
from everlong.corpora.boundaries import books_of, trigger_texts
from everlong.corpora.evicted import evicted_texts
from everlong.corpora.frames import frame_texts
from everlong.corpora.pairs import load_pairs
from everlong.corpora.told import told_of_both
from everlong.corpora.walks import draw_walk_texts
from everlong.models.pack import Pack, load_pack, pack_with
from everlong.parts.adapter.train import AdapterTraining
from everlong.parts.kv_writer.model import KV_WRITER
from everlong.parts.kv_writer.train import KvWriterTraining
from everlong.parts.retrieve.model import RETRIEVE
from everlong.parts.retrieve.train import RetrieveTraining
from everlong.parts.towers.model import TOWERS
from everlong.parts.towers.train import TowerTraining
from everlong.parts.trigger.model import TRIGGER
from everlong.parts.trigger.train import TriggerTraining
from everlong.parts.trimmer.model import TRIMMER, Trimmer
from everlong.parts.trimmer.train import TrimmerTraining
from everlong.parts.walker.model import WALKER
from everlong.parts.walker.train import WalkerTraining
from everlong.parts.writer.model import WRITER
from everlong.parts.writer.train import WriterTraining
from everlong.text.vectors import Encoder
from everlong.training.run import (
    Progress,
    train_adapter,
    train_kv_writer,
    train_retrieve,
    train_towers,
    train_trigger,
    train_trimmer,
    train_walker,
    train_writer,
)

# In the order in which they are trained: what helps most first, writers behind the Trimmer that chooses for them, the
# Walker and the adapter behind the towers that they search by.
PARTS = (TOWERS, TRIGGER, TRIMMER, WRITER, KV_WRITER, WALKER, "adapter", RETRIEVE)
_DONE = "trained.json"  # in a part's folder: which one was made there, and of what


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much each part is trained on."""

    tower_steps: int = 2000
    splices: int = 36
    samples: int = 24
    stories: int = 12
    walk_texts: int = 6
    walk_texts_by_words: int = 30
    walk_tokens: int = 20_000
    walk_chains: int = 30
    streams: int = 16  # of both writers
    told: int = 240
    told_stories: int = 120
    writer_steps: int = 500  # of both, the writer's of half as many lessons
    adapter_tokens: int = 160_000
    adapter_steps: int = 150
    frames: int = 400  # of <RETRIEVE>
    retrieve_steps: int = 100


def train_parts(
    model: Any,
    tokenizer: Any,
    parts: Sequence[str],
    *,
    text: Sequence[pathlib.Path],
    data: Sequence[pathlib.Path],
    work: pathlib.Path,
    out: pathlib.Path,
    minutes: float | None = None,
    seed: int = 0,
    teacher: Encoder | None = None,
    sizes: Sizes | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Train `parts`, each in a folder of `work`, and put each into the pack `out` once it is done; which were.

    `text`: books in which topics are joined and facts planted, and which give the towers wrong passages; the shipped
    ones without. `data`: pairs for the towers, beside the shipped sets. No part begins once `minutes` have passed, and
    of those that are left a part's training, without the states that it needs first, takes its share at most. Called
    again with the same arguments it goes on: a part that is done is not trained again. ValueError for an unknown part.
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise ValueError(f"there is no part {unknown[0]!r}: there are {', '.join(PARTS)}")
    sizes, started = sizes or Sizes(), time.monotonic()
    wanted = [part for part in PARTS if part in parts]
    trained: list[str] = []
    for number, part in enumerate(wanted):
        folder = work / part
        asked = {"seed": seed, "text": list(map(str, text)), "data": list(map(str, data)), **dataclasses.asdict(sizes)}
        if _is_done(folder, out, part, asked):
            say(f"{part}: is there")
            trained.append(part)
            continue
        left = None if minutes is None else minutes - (time.monotonic() - started) / 60
        if left is not None and left <= 0:
            say(f"{part}: left out, the time is over; the same command goes on")
            continue
        share = None if left is None else left / (len(wanted) - number)
        say(f"{part}: training")
        pack = _trained(model, tokenizer, part, text, data, folder, out, share, seed, teacher, sizes, progress)
        pack.save(out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _DONE).write_text(json.dumps({"id": pack.parts[part].id, "asked": asked}))
        trained.append(part)
    return trained


def _is_done(folder: pathlib.Path, out: pathlib.Path, part: str, asked: dict[str, Any]) -> bool:
    file = folder / _DONE
    if not file.exists() or not out.exists():
        return False
    said = json.loads(file.read_text())
    kept = load_pack(out).parts.get(part)
    return kept is not None and said == {"id": kept.id, "asked": json.loads(json.dumps(asked))}


def _trained(
    model: Any,
    tokenizer: Any,
    part: str,
    text: Sequence[pathlib.Path],
    data: Sequence[pathlib.Path],
    work: pathlib.Path,
    out: pathlib.Path,
    minutes: float | None,
    seed: int,
    teacher: Encoder | None,
    sizes: Sizes,
    progress: Progress | None,
) -> Pack:
    if part == TOWERS:
        towers = TowerTraining(steps=sizes.tower_steps, minutes=minutes, seed=seed)
        pairs = load_pairs(files=data, foreign=text)
        return train_towers(model, tokenizer, pairs, work=work, training=towers, teacher=teacher, progress=progress)
    if part == TRIGGER:
        texts = trigger_texts(books_of(text), splices=sizes.splices, with_dialogues=True, seed=seed)
        trigger = TriggerTraining(minutes=minutes, seed=seed)
        return train_trigger(model, tokenizer, texts, work=work, training=trigger, progress=progress)
    if part == TRIMMER:
        stories = load_pairs(["fairytale"]) if sizes.stories else None
        trimmed = trim_texts(
            tokenizer, books_of(text), stories, samples=sizes.samples, stories=sizes.stories, seed=seed
        )
        trimmer = TrimmerTraining(minutes=minutes, seed=seed)
        return train_trimmer(model, tokenizer, trimmed, work=work, training=trimmer, progress=progress)
    if part == WALKER:
        drawn = draw_walk_texts(
            tokenizer,
            books_of(text),
            texts=sizes.walk_texts + sizes.walk_texts_by_words,
            tokens=sizes.walk_tokens,
            chains=sizes.walk_chains,
            split="train",
            seed=seed,
        )
        return train_walker(
            model,
            tokenizer,
            drawn[: sizes.walk_texts],
            work=work,
            pack=load_pack(out) if (out / "pack.json").exists() else None,
            words_alone=drawn[sizes.walk_texts :],
            training=WalkerTraining(minutes=minutes, seed=seed),
            progress=progress,
        )
    if part in (WRITER, KV_WRITER):
        books = books_of(text)
        streams = evicted_texts(tokenizer, books, samples=sizes.streams, seed=seed)
        chooser = trimmer_for(model, out)
        if part == KV_WRITER:
            taught = KvWriterTraining(steps=sizes.writer_steps, minutes=minutes, seed=seed)
            return train_kv_writer(model, streams, chooser, work=work, training=taught, progress=progress)
        pairs = load_pairs(["fairytale"])
        told = told_of_both(tokenizer, books, pairs, places=sizes.told, stories=sizes.told_stories, seed=seed)
        writer = WriterTraining(steps=sizes.writer_steps, minutes=minutes, seed=seed)
        return train_writer(
            model,
            tokenizer,
            streams,
            told,
            trimmer=chooser,
            work=work,
            training=writer,
            progress=progress,
        )
    if part == RETRIEVE:
        books, pairs = books_of(text), load_pairs(["fairytale"])
        frames = frame_texts(tokenizer, books, pairs, count=sizes.frames, split="train", seed=seed)
        frames += frame_texts(tokenizer, books, pairs, count=max(2, sizes.frames // 12), split="fit", seed=seed)
        retrieve = RetrieveTraining(steps=sizes.retrieve_steps, minutes=minutes, seed=seed)
        return train_retrieve(model, tokenizer, frames, work=work, training=retrieve)
    adapter = AdapterTraining(steps=sizes.adapter_steps, minutes=minutes, seed=seed)
    return train_adapter(
        model, tokenizer, load_pairs(), work=work, tokens=sizes.adapter_tokens, training=adapter, progress=progress
    )


def trimmer_for(model: Any, out: pathlib.Path) -> Trimmer:
    """Of the pack that is being made, else of the one that the model has. EverlongError where neither has one."""
    own = load_pack(out) if out.exists() else None
    found = own if own is not None and TRIMMER in own.parts else pack_with(TRIMMER, "Trimmer", model, "auto")
    return Trimmer.of_part(found.parts[TRIMMER])
