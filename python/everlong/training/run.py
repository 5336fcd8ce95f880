"""From a model and its data to a pack: what `everlong train ...` does, part by part."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from everlong.corpora.boundaries import CutText
from everlong.corpora.pairs import FOREIGN, Pairs
from everlong.corpora.record import Record
from everlong.corpora.scenarios import FAMILIES, Scenario
from everlong.corpora.told import exercise
from everlong.frame.serve import default_config
from everlong.generation.memory_model import MemoryModel
from everlong.models.low_rank import Adapter, AdapterSettings, adapted_layers
from everlong.models.pack import Pack, PackPart
from everlong.models.provenance import made_with
from everlong.parts.adapter.answers import read_examples, taught_answers
from everlong.parts.adapter.train import AdapterTrainer, AdapterTraining
from everlong.parts.kv_writer.model import KV_WRITER, KvWriterConfig
from everlong.parts.kv_writer.train import KvWriterTrainer, KvWriterTraining
from everlong.parts.latents import LatentSettings
from everlong.parts.retrieve.model import RETRIEVE
from everlong.parts.retrieve.train import RetrieveTraining
from everlong.parts.retrieve.train import train_on as train_retrieve_on
from everlong.parts.towers.model import TOWERS, LateTowers, TowerSettings
from everlong.parts.towers.teacher import taught_vectors
from everlong.parts.towers.train import TowerTrainer, TowerTraining
from everlong.parts.trigger.at_work import SaidText, kept_texts
from everlong.parts.trigger.model import TRIGGER, TriggerSettings
from everlong.parts.trigger.train import TriggerTraining, figures_of
from everlong.parts.trigger.train import train_trigger as train_on
from everlong.parts.trimmer.in_model import InModelTrainer, InModelTraining
from everlong.parts.trimmer.model import TRIMMER, Trimmer, TrimmerSettings
from everlong.parts.trimmer.train import TrimmerTraining
from everlong.parts.trimmer.train import figures_of as figures_of_trimmer
from everlong.parts.trimmer.train import train_trimmer as train_trimmer_on
from everlong.parts.walker.model import WALKER, WalkerSettings
from everlong.parts.walker.train import WalkerTraining
from everlong.parts.walker.train import figures_of as figures_of_walker
from everlong.parts.walker.train import train_walker as train_walker_on
from everlong.parts.writer.deciding import DeciderSettings
from everlong.parts.writer.model import WRITER, Writer, WriterConfig, maps_of
from everlong.parts.writer.train import ToldRead, TrainedBefore, WriterTrainer, WriterTraining, words_of
from everlong.text.boundaries import TextBoundaries
from everlong.text.control import memory_marks
from everlong.text.vectors import Encoder, encoder_name
from everlong.training.attended import attended_texts
from everlong.training.evicted import read_evicted
from everlong.training.loop import Learned, LoopSettings
from everlong.training.read_states import read_states
from everlong.training.states import OfDetails, cached_states
from everlong.training.told import told_states
from everlong.training.walks import read_walk_texts

Progress = Callable[[str, int, int], None]
# As shares of the model's depth, where its states tell most of what a text says (findings-2: 10 and 16 of 30).
_DEPTHS = (1 / 3, 0.43, 0.53)
_TRIGGER_DEPTHS = (0.43,)
_TRIMMER_DEPTHS = (1 / 3, 0.53)
_WRITERS_READER = {"width": 256, "heads": 8, "inner": 384, "order": 3}
_OF_BEGUN = ("data", "books", "training", "steps", "minutes", "figures", "log", "begun with")
_SMALLER_READER = {"width": 128, "depth": 1, "inner": 256}  # beside the maps to every layer's keys


def middle_layers(model: Any, depths: Sequence[float] = _DEPTHS) -> tuple[int, ...]:
    """Which layers' states a part reads where nobody names others."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    return tuple(sorted({min(max(1, round(depth * count)), max(1, count - 1)) for depth in depths}))


def train_towers(
    model: Any,
    tokenizer: Any,
    pairs: Pairs,
    *,
    work: pathlib.Path,
    layers: Sequence[int] = (),
    training: TowerTraining | None = None,
    teacher: Encoder | None = None,
    writer: PackPart | None = None,
    group_tokens: int = 16,
    progress: Progress | None = None,
    check: Callable[[int, dict[str, float]], None] | None = None,
) -> Pack:
    """Cache states and the teacher's vectors in `work`, train, measure on stories that were held out; the pack.

    With a `writer`, passages are its Detail Tokens, one for `group_tokens` tokens, in place of states.
    What was cut short goes on where it stopped when it is called again with the same arguments.
    """
    training = training or TowerTraining()
    layers = tuple(layers) or middle_layers(model)
    hidden_size = model.config.get_text_config(decoder=True).hidden_size
    details = None if writer is None else OfDetails(writer.id, Writer.of_part(writer), group_tokens)
    states = cached_states(
        model, tokenizer, pairs, layers, work / "states", details=details, seed=training.seed, progress=progress
    )
    taught = None if teacher is None else taught_vectors(pairs, teacher, work / "teacher", progress=progress)
    settings = TowerSettings(layers, hidden_size)
    if writer is not None:
        size = int(states.passages.shape[1])
        settings = TowerSettings(layers, hidden_size, group_tokens=group_tokens, details_size=size, writer=writer.id)
    trainer = TowerTrainer(pairs, states, settings, training, taught, checkpoints=work / "checkpoint", progress=check)
    trained = trainer.train()
    figures = {split: trainer.found(trained.towers, split) for split in ("fit", "test")}
    made = {
        "data": pairs.origins(),
        "foreign": sorted({text.name for text in pairs.texts if text.origin == FOREIGN}),
        "training": dataclasses.asdict(training),
        "teacher": "" if teacher is None else encoder_name(teacher),
        "steps": trained.steps,
        "minutes": round(trained.minutes, 1),
        "figures": figures,
        "log": list(trained.log),
        "with": made_with(model),
    }
    pack = pack_of(model, trained.towers.part(made))
    return pack if writer is None else dataclasses.replace(pack, parts={**pack.parts, WRITER: writer})


def train_trigger(
    model: Any,
    tokenizer: Any,
    texts: Sequence[CutText],
    *,
    work: pathlib.Path,
    layers: Sequence[int] = (),
    training: TriggerTraining | None = None,
    progress: Progress | None = None,
    check: Callable[[int, dict[str, float]], None] | None = None,
) -> Pack:
    """Cache states in `work`, train, measure on texts that were held out, keep what thresholds are calibrated by.

    Those are the texts of origin "book". States that were cut short go on where they stopped; training takes minutes
    and begins anew. ValueError where there are no such texts, or none to train on or to hold out.
    """
    training = training or TriggerTraining()
    layers = tuple(layers) or middle_layers(model, _TRIGGER_DEPTHS)
    books = [at for at, text in enumerate(texts) if text.origin == "book"]
    if not books:
        raise ValueError("thresholds are calibrated on text as it is read; there is none")
    states = read_states(model, tokenizer, texts, layers, work / "states", progress=progress)
    hidden_size = model.config.get_text_config(decoder=True).hidden_size
    trained = train_on(states, TriggerSettings(layers, hidden_size), training, progress=check)
    # As a pack gives it back: its maps are in 16 bits there.
    trigger = type(trained.trigger).of_part(trained.trigger.part({}, {}))
    boundaries = TextBoundaries(tokenizer)
    kept = []
    for text in (states.texts[at] for at in books):
        ends = [(end, kind) for end, kind in boundaries.find(text.ids) if kind in ("sentence", "paragraph")]
        with torch.no_grad():
            kept.append(SaidText(trigger.said(states.of(text)).numpy(), ends))
    splits = sorted({text.split for text in texts})
    made = {
        "data": _counted(texts),
        "books": sorted({name for text in texts for name in text.sources}),
        "training": dataclasses.asdict(training),
        "steps": trained.steps,
        "minutes": round(trained.minutes, 1),
        "tokens": len(states.states),
        "figures": {split: figures_of(trigger, states, split) for split in splits},
        "log": list(trained.log),
        "with": made_with(model),
    }
    return _pack(model, {TRIGGER: trigger.part(kept_texts(kept), made)})


def train_adapter(
    model: Any,
    tokenizer: Any,
    pairs: Pairs,
    *,
    work: pathlib.Path,
    tokens: int,
    training: AdapterTraining | None = None,
    progress: Progress | None = None,
    check: Callable[[int, dict[str, float]], None] | None = None,
) -> Pack:
    """Read `tokens` of stories with planted passages, keep the model's answers on right passages, train; the pack.

    Memory, answers and checkpoints lie in `work`: what was cut short goes on where it stopped when it is called again
    with the same arguments. Questions are searched for as the model's pack has it by now.
    """
    training = training or AdapterTraining()
    config = default_config(model)
    parts = [one for one in config.parts if one.name != "adapter"]
    config = config.changed(answer={"recall_mode": "kv"}, parts=parts)
    with MemoryModel(model, tokenizer, work / "memory", config) as mm:
        examples = read_examples(mm, pairs, tokens=tokens, seed=training.seed, progress=progress)
        taught = taught_answers(model, tokenizer, examples, work / "answers", progress=progress)
        checkpoints = work / "checkpoint"
        trainer = AdapterTrainer(mm, examples, taught, training, checkpoints=checkpoints, progress=check)
        trained = trainer.train()
        learned = trained.learned
        made = {
            "data": _sets_of(pairs),
            "questions": len(examples),
            "tokens": mm.stream_tokens,
            "training": dataclasses.asdict(training),
            "steps": learned.steps,
            "minutes": round(learned.minutes, 1),
            "figures": {"held out, nats a token": {"before": learned.log[0]["held out"], "after": _least(learned.log)}},
            "log": list(learned.log),
            "with": made_with(model),
        }
    return _pack(model, {"adapter": trained.adapter.part(made)})


def train_retrieve(
    model: Any,
    tokenizer: Any,
    frames: Sequence[Record],
    *,
    work: pathlib.Path,
    training: RetrieveTraining | None = None,
    check: Callable[[int, dict[str, float]], None] | None = None,
) -> Pack:
    """Train `<RETRIEVE>`, which goes on where it stopped; the pack."""
    training = training or RetrieveTraining()
    trained = train_retrieve_on(model, tokenizer, frames, training, checkpoints=work / "checkpoint", progress=check)
    learned = trained.learned
    made = {
        "data": {split: sum(frame.split == split for frame in frames) for split in ("train", "fit")},
        "texts": sorted({frame.name for frame in frames if frame.split == "train"}),
        "training": dataclasses.asdict(training),
        "steps": learned.steps,
        "minutes": round(learned.minutes, 1),
        "figures": {"held out, nats": {"at first": learned.log[0]["held out"], "trained": _least(learned.log)}},
        "log": list(learned.log),
        "with": made_with(model),
    }
    return _pack(model, {RETRIEVE: trained.row.part(trained.maps, made)})


def _least(log: Sequence[Mapping[str, float]]) -> float:
    return min(entry["held out"] for entry in log)


def _sets_of(pairs: Pairs) -> list[str]:
    return sorted({text.origin for text in pairs.texts if text.split == "train"})


def train_trimmer(
    model: Any,
    tokenizer: Any,
    texts: Sequence[Record],
    *,
    work: pathlib.Path,
    layers: Sequence[int] = (),
    settings: Mapping[str, Any] | None = None,
    training: TrimmerTraining | None = None,
    scenarios: Sequence[Scenario] = (),
    in_model: InModelTraining | None = None,
    with_adapter: bool = False,
    progress: Progress | None = None,
    check: Callable[[int, dict[str, float]], None] | None = None,
) -> Pack:
    """Cache states and what their tokens are attended by in `work`, train, measure on texts that were held out.

    With `in_model` it then learns from `scenarios` through the model, an adapter beside it if asked for: the pack has
    both then. `settings` are further ones of TrimmerSettings.
    What was cut short goes on where it stopped; the first stage's training takes seconds and begins anew. ValueError
    where there is nothing to train on or to hold out.
    """
    if with_adapter and in_model is None:
        raise ValueError("an adapter learns with a Trimmer that learns through the model; that takes steps of its own")
    training = training or TrimmerTraining()
    layers = tuple(layers) or middle_layers(model, _TRIMMER_DEPTHS)
    attended = attended_texts(model, tokenizer, texts, layers, work / "states", progress=progress)
    hidden_size = model.config.get_text_config(decoder=True).hidden_size
    own = TrimmerSettings(layers, hidden_size, **(settings or {}))
    trained = train_trimmer_on(attended, own, training, progress=check)
    # As a pack gives it back: its maps are in 16 bits there.
    trimmer = type(trained.trimmer).of_part(trained.trimmer.part({}))
    second: dict[str, Any] = {}
    adapter: Adapter | None = None
    if in_model is not None:
        own_adapter = Adapter(AdapterSettings(), adapted_layers(model), seed=in_model.seed) if with_adapter else None
        trainer = InModelTrainer(
            model, scenarios, in_model, adapter=own_adapter, checkpoints=work / "in-model", progress=check
        )
        refined = trainer.train(trimmer)
        adapter = refined.adapter
        trimmer = type(trimmer).of_part(refined.trimmer.part({}))
        second = {
            "training": dataclasses.asdict(in_model),
            "scenarios": {family: sum(one.origin == family for one in scenarios) for family in FAMILIES},
            "steps": refined.learned.steps,
            "minutes": round(refined.learned.minutes, 2),
            "log": list(refined.learned.log),
        }
    asked = [text.origin for text in texts if text.split == "train" for _ in text.questions]
    made = {
        "data": {
            "blocks": sum(text.blocks for text in texts if text.split == "train"),
            "planted questions": asked.count("book"),
            "questions about stories": asked.count("story"),
        },
        "books": sorted({text.name.rpartition(" ")[0] for text in texts if text.origin == "book"}),
        "stories": sorted({text.name for text in texts if text.origin == "story"}),
        "training": dataclasses.asdict(training),
        "steps": trained.steps,
        "minutes": round(trained.minutes, 2),
        "figures": {split: figures_of_trimmer(trimmer, attended, split, training) for split in ("train", "fit")},
        "log": list(trained.log),
        **({"through the model": second} if second else {}),
        "with": made_with(model),
    }
    parts = {TRIMMER: trimmer.part(made)}
    if adapter is not None:
        parts["adapter"] = adapter.part({key: made[key] for key in ("books", "through the model", "with")})
    return _pack(model, parts)


def train_walker(
    model: Any,
    tokenizer: Any,
    texts: Sequence[Record],
    *,
    work: pathlib.Path,
    pack: Pack | None,
    words_alone: Sequence[Record] = (),
    settings: WalkerSettings | None = None,
    training: WalkerTraining | None = None,
    progress: Progress | None = None,
    check: Callable[[int, dict[str, float]], None] | None = None,
) -> Pack:
    """Read texts with chains of facts, as the towers of the `pack` have them where it has some; walk, and learn.

    `words_alone` are searched by words, without a reading: cheap, and what a memory without towers is like. Vectors
    lie in `work`: what was cut short goes on there; training takes minutes and begins anew. The policy is chosen by
    texts that are held out. ValueError where there are too few.
    """
    training = training or WalkerTraining()
    towers = None
    if pack is not None and TOWERS in pack.parts:
        towers = (pack.parts[TOWERS].id, LateTowers.of_part(pack.parts[TOWERS]))
    cheap = read_walk_texts(model, tokenizer, None, words_alone, work / "words", progress=progress)
    whole = read_walk_texts(model, tokenizer, towers, texts, work / "vectors", progress=progress)
    trained = train_walker_on([*whole, *cheap], settings or WalkerSettings(), training, progress=check)
    hops = [len(asked.spans) for text in (*words_alone, *texts) for asked in text.questions]
    made = {
        "data": {f"{count} facts": hops.count(count) for count in sorted(set(hops))},
        "books": sorted({text.name.rpartition(" ")[0] for text in (*words_alone, *texts)}),
        "towers": "" if towers is None else towers[0],
        "training": dataclasses.asdict(training),
        "rounds": trained.rounds,
        "minutes": round(trained.minutes, 1),
        "figures": {"fit": figures_of_walker(trained.walker, trained.held_out)},
        "log": list(trained.log),
        "with": made_with(model),
    }
    return _pack(model, {WALKER: trained.walker.part(made)})


def train_writer(
    model: Any,
    tokenizer: Any,
    texts: Sequence[Record],
    told: Sequence[Sequence[Record]] = (),
    *,
    trimmer: Trimmer | None = None,
    begun: PackPart | None = None,
    work: pathlib.Path,
    layers: Sequence[int] = (),
    settings: Mapping[str, Any] | None = None,
    training: WriterTraining | None = None,
    progress: Progress | None = None,
    check: Callable[[int, dict[str, float]], None] | None = None,
) -> Pack:
    """Read `texts` once, and `told` of several kinds, what is needed of them kept in `work`, train, measure on those
    that were held out; the pack.

    It goes on from a writer that was `begun` where there is one, whose shape it has, else begins with what `trimmer`
    would keep. `settings` are further ones of LatentSettings. What was cut short goes on where it stopped when it is
    called again with the same arguments. ValueError where there is nothing to train on or to hold out.
    """
    training = training or WriterTraining()
    before = None if begun is None else TrainedBefore(Writer.of_part(begun), maps_of(begun))
    if before is not None:
        layers = layers or before.writer.config.layers
    layers = tuple(layers) or (trimmer.settings.layers if trimmer else middle_layers(model, _TRIMMER_DEPTHS))
    reads = read_evicted(model, texts, layers, work / "streams", progress=progress)
    hidden_size = model.config.get_text_config(decoder=True).hidden_size
    embedding_size = model.get_input_embeddings().weight.shape[-1]
    opening, closing = memory_marks(tokenizer)
    reader = LatentSettings(layers, hidden_size, embedding_size, **{**_WRITERS_READER, **(settings or {})})
    decider = DeciderSettings(embedding_size) if training.why and any(told) else None
    config = WriterConfig(reader, opening=opening, closing=closing, decider=decider)
    asked = [
        read
        for number, blocks in enumerate(told)
        for read in told_reads(model, tokenizer, blocks, layers, work / f"told-{number}", progress=progress)
    ]
    words, points = words_of(tokenizer), work / "checkpoint"
    trainer = WriterTrainer(
        model, reads, config, training, words, asked, trimmer=trimmer, begun=before, checkpoints=points, progress=check
    )
    trained = trainer.train()
    made = _made_of(model, texts, training, trained.learned)
    if trained.settled is not None:
        made["decisions"] = {"steps": trained.settled.steps, "log": list(trained.settled.log)}
    if begun is not None:
        made["begun with"] = {"id": begun.id, **{key: begun.made[key] for key in _OF_BEGUN if key in begun.made}}
    return _pack(model, {WRITER: trained.writer.part(made, trained.lora)})


def told_reads(
    model: Any,
    tokenizer: Any,
    told: Sequence[Record],
    layers: Sequence[int],
    folder: pathlib.Path,
    *,
    progress: Progress | None = None,
) -> list[ToldRead]:
    """Blocks with questions, read; nothing at all of none."""
    if not told:
        return []
    states = told_states(model, told, layers, folder, progress=progress)
    return [
        ToldRead(block, own, tuple(exercise(tokenizer, asked) for asked in block.questions))
        for block, own in zip(told, states, strict=True)
    ]


def _made_of(model: Any, texts: Sequence[Record], training: LoopSettings, learned: Learned) -> dict[str, Any]:
    first, best = learned.log[0]["held out"], _least(learned.log)
    return {
        "data": {split: sum(text.split == split for text in texts) for split in ("train", "fit")},
        "books": sorted({text.name for text in texts if text.split == "train"}),
        "training": dataclasses.asdict(training),
        "steps": learned.steps,
        "minutes": round(learned.minutes, 1),
        "figures": {"held out, in nats a token": {"at first": first, "trained": best}},
        "log": list(learned.log),
        "with": made_with(model),
    }


def train_kv_writer(
    model: Any,
    texts: Sequence[Record],
    trimmer: Trimmer,
    *,
    work: pathlib.Path,
    settings: Mapping[str, Any] | None = None,
    training: KvWriterTraining | None = None,
    progress: Progress | None = None,
    check: Callable[[int, dict[str, float]], None] | None = None,
) -> Pack:
    """The same for keys and values of the tokens that a Trimmer keeps, whose layers are read."""
    training = training or KvWriterTraining()
    layers = trimmer.settings.layers
    reads = read_evicted(model, texts, layers, work / "streams", with_kv=True, progress=progress)
    hidden_size = model.config.get_text_config(decoder=True).hidden_size
    kv_layers, kv_heads, _, head_dim = reads[0].sinks()[0].shape
    reader = LatentSettings(layers, hidden_size, **{**_SMALLER_READER, **(settings or {})})
    config = KvWriterConfig(reader, kv_layers, kv_heads, head_dim)
    trainer = KvWriterTrainer(
        model, reads, trimmer, config, training, checkpoints=work / "kv-checkpoint", progress=check
    )
    trained = trainer.train()
    return _pack(model, {KV_WRITER: trained.writer.part(_made_of(model, texts, training, trained.learned))})


def _counted(texts: Sequence[CutText]) -> dict[str, int]:
    """How many places of each kind are trained on."""
    kinds = [cut.kind for text in texts if text.split == "train" for cut in text.cuts]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def pack_of(model: torch.nn.Module, towers: PackPart) -> Pack:
    return _pack(model, {TOWERS: towers})


def _pack(model: torch.nn.Module, parts: Mapping[str, PackPart]) -> Pack:
    from everlong.models.fingerprint import weights_fingerprint

    name = str(getattr(model, "name_or_path", ""))
    return Pack(weights_fingerprint(model), name, parts)
