"""From a model and a place to what a MemoryModel is made of: the memory, how the model is served, and the settings."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import warnings
from typing import Any

import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.errors import ModelMismatchError
from everlong.frame.details import DetailTokens
from everlong.frame.frame import Frame
from everlong.frame.kept_writing import TombstoneWriter
from everlong.frame.kv_frame import KvFrame
from everlong.frame.older_kept import OlderKept
from everlong.frame.open_frame import open_frame
from everlong.frame.serve import default_config, serve
from everlong.frame.tombstone_mass import TombstoneScores
from everlong.frame.trimming import UNTRAINED, ByStates, TokenScorer, untrained_scorer
from everlong.memory import Memory
from everlong.memory.fingerprint import Fingerprint
from everlong.models.fingerprint import fingerprint
from everlong.models.low_rank import Adapter, AttachedAdapter
from everlong.models.pack import Pack, open_pack
from everlong.models.served import Served
from everlong.parts.adapter.model import ADAPTER
from everlong.parts.kv_writer.model import KV_WRITER, WrittenAnchors
from everlong.parts.retrieve.model import Retrieving, retrieving_of
from everlong.parts.tombstones.model import TOMBSTONES, TombstoneHeads, tombstone_heads_of
from everlong.parts.towers.at_work import Meaning
from everlong.parts.towers.model import TOWERS
from everlong.parts.trigger.at_work import LearnedTopicEnds
from everlong.parts.trigger.model import TRIGGER
from everlong.parts.trimmer.model import TRIMMER, trimmer_of
from everlong.parts.walker.model import Walker, shipped_walker, walker_of
from everlong.parts.writer.at_work import BlockDetails, MeanPool, detail_writer
from everlong.parts.writer.model import WRITER, reading_details
from everlong.retrieval.embedding import Encoder, load_encoder


@dataclasses.dataclass(frozen=True)
class Opened:
    """A memory that its writer holds, and what goes with it."""

    memory: Memory
    served: Served
    frame: Frame
    config: MemoryConfig  # as the memory is written
    prints: Fingerprint
    encoder: Encoder | None
    meaning: Meaning | None
    walker: Walker | None
    details: BlockDetails | None
    retrieving: Retrieving | None
    older_kept: OlderKept | None


def open_memory(
    model: Any,
    tokenizer: Any,
    memory: str | pathlib.Path | Memory | None,
    config: MemoryConfig | None,
    pack: str | pathlib.Path | None,
    writer: object,
    undo: contextlib.ExitStack,
) -> Opened:
    """Open or make the memory for this model, for `writer` alone, and put a frame over it.

    `undo` takes what has to be undone where something fails, here or later. Errors as `MemoryModel` says.
    """
    owns_memory = not isinstance(memory, Memory)
    there = memory if isinstance(memory, Memory) else _existing(memory, config)
    if there is not None and owns_memory:
        undo.callback(there.close)
    if there is not None:
        there.begin_writing(writer)
        undo.callback(there.end_writing, writer)
    text_alone = there is not None and there.core.manifest().text_alone
    config = config if config is not None else default_config(model, text_alone=text_alone)
    # What is refused is refused before there is a folder, whose codec and page length would stay.
    _core.MemoryOs(config.os_config())
    served = serve(model, config, text_alone=text_alone)
    config = config if served.layers > 0 else config.of_text_alone()
    encoder = _encoder_of(config) if "embedding" in config.index else None
    prints = fingerprint(served, tokenizer)
    trained = open_pack(pack, prints) if served.layers > 0 else None
    _require_trigger(trained, config)
    if config.tombstones > 0 and config.tombstone_writer is None:
        there_are = trained is not None and {TRIMMER, KV_WRITER} <= trained.parts.keys()
        config = dataclasses.replace(config, tombstone_writer=there_are)
    stones = _tombstone_heads(trained, config)
    if stones is not None and config.tombstone_threshold is None:
        config = dataclasses.replace(config, tombstone_threshold=stones.threshold)
    scorer = _token_scorer(trained, config)
    retrieving = _retrieving(trained, config, served.model)
    kept_writer = _kv_writer(trained, config, served) if config.kept_writer and scorer is not None else None
    tombstone_writer = _tombstone_writer(trained, config, served)
    if there is None:
        assert not isinstance(memory, Memory)
        there = Memory.open(memory, create=_manifest(served, prints, config), host_bytes=config.host_bytes)
        undo.callback(there.close)
        there.begin_writing(writer)
    _require_same_model(there, prints, model)
    # How a memory is written was decided when it was made.
    config = config.written_as(there.core.manifest())
    frame = open_frame(
        served, there, config, tokenizer, _topic_ends(trained, config), scorer, kept_writer, tombstone_writer
    )
    undo.callback(frame.detach)
    if stones is not None and isinstance(frame, KvFrame):
        frame.tombstone_scores = TombstoneScores(frame.served, stones.heads, stones.weights, stones.bias)
    if trained is not None and config.answer_adapter and ADAPTER in trained.parts:
        frame.adaptation = AttachedAdapter(Adapter.of_part(trained.parts[ADAPTER]), served.model)
    has_towers = trained is not None and TOWERS in trained.parts
    meaning = Meaning(trained, config.page_tokens, served.model) if trained is not None and has_towers else None
    if trained is not None and config.answer_adapter and WRITER in trained.parts and config.detail_blocks_recalled > 0:
        frame.adaptation = reading_details(trained.parts[WRITER], served.model) or frame.adaptation
    details = _details(trained, config, served.model)
    if details is not None:
        frame.details = DetailTokens(there.core, served.model, tokenizer, details.tensor, details.marks)
    older = None
    if scorer is not None and config.recall_mode == "kept" and not there.core.read_only:
        older = OlderKept(there.core, config, scorer, kept_writer)
    return Opened(
        memory=there,
        served=served,
        frame=frame,
        config=config,
        prints=prints,
        encoder=encoder,
        meaning=meaning,
        walker=_walker(trained),
        details=details,
        retrieving=retrieving,
        older_kept=older,
    )


def _details(pack: Pack | None, config: MemoryConfig, model: Any) -> BlockDetails | None:
    if config.details == 0:
        return None
    writer = detail_writer(pack, config.details)
    if isinstance(writer, MeanPool) and config.recall_mode in ("detail", "both"):
        warnings.warn(
            f"recall_mode={config.recall_mode!r}: no writer was trained for this model (`everlong train writer`), and "
            "means of embeddings, which come back instead, may put it off altogether",
            stacklevel=4,
        )
    found = BlockDetails(writer, model)
    if config.rerank_details and not found.decides:
        raise ValueError(
            "rerank_details: no writer that decides was trained for this model; `everlong train writer --why 1` trains "
            "one"
        )
    return found


def _retrieving(pack: Pack | None, config: MemoryConfig, model: Any) -> Retrieving | None:
    """What says <RETRIEVE>, where it is listened to."""
    if config.prompt_recall != "learned":
        return None
    found = None if pack is None else retrieving_of(pack, model)
    if found is None:
        raise ValueError(
            "prompt_recall='learned': nothing was trained to say <RETRIEVE> for this model; `everlong train retrieve` "
            "makes it"
        )
    return found


def _walker(pack: Pack | None) -> Walker | None:
    """The model's own, else the one that serves any model."""
    return (None if pack is None else walker_of(pack)) or shipped_walker()


def _require_trigger(pack: Pack | None, config: MemoryConfig) -> None:
    if config.segmenter == "learned" and (pack is None or TRIGGER not in pack.parts):
        raise ValueError(
            "segmenter='learned': there is no trigger for this model; `everlong train trigger` makes one, and "
            "segmenter='rules' needs none"
        )


def _tombstone_heads(pack: Pack | None, config: MemoryConfig) -> TombstoneHeads | None:
    """What tombstones wake by, where they do."""
    if "tombstone" not in config.policies:
        return None
    heads = None if pack is None else tombstone_heads_of(pack)
    if heads is None:
        raise ValueError(
            "policy='tombstone': there is no calibration of tombstones for this model; `everlong eval tombstones "
            "--keep` makes one"
        )
    assert pack is not None
    by_writer = bool(pack.parts[TOMBSTONES].made.get("made", {}).get("writer", False))
    if by_writer != config.tombstone_writer:
        warnings.warn(
            f"policy='tombstone': what tombstones wake by was calibrated with tombstone_writer={by_writer}",
            stacklevel=4,
        )
    return heads


def _topic_ends(pack: Pack | None, config: MemoryConfig) -> LearnedTopicEnds | None:
    if config.segmenter != "learned" or pack is None:
        return None
    return LearnedTopicEnds(pack, config.os_config(), config.block_mean_tokens)


def _token_scorer(pack: Pack | None, config: MemoryConfig) -> TokenScorer | None:
    """Who chooses the tokens that are kept; None where none are."""
    if config.kept_tokens == 0:
        return None
    if config.trimmer != "learned":
        return untrained_scorer(config.trimmer)
    trimmer = None if pack is None else trimmer_of(pack)
    if trimmer is None:
        others = ", ".join(f"'{name}'" for name in UNTRAINED)
        raise ValueError(
            "trimmer='learned': there is no Trimmer for this model; `everlong train trimmer` makes one, and "
            f"{others} need none"
        )
    return ByStates(trimmer.settings.layers, trimmer.scores)


def _kv_writer(pack: Pack | None, config: MemoryConfig, served: Served) -> WrittenAnchors:
    if pack is None or KV_WRITER not in pack.parts:
        setting = "kept_writer" if config.kept_writer else "tombstone_writer"
        raise ValueError(
            f"{setting}=True: there is no KV writer for this model; `everlong train kv-writer` makes one, and "
            f"{setting}=False needs none"
        )
    return WrittenAnchors(pack.parts[KV_WRITER], served.model.device)


def _tombstone_writer(pack: Pack | None, config: MemoryConfig, served: Served) -> TombstoneWriter | None:
    if not config.tombstone_writer or config.tombstones == 0:
        return None
    trimmer = None if pack is None else trimmer_of(pack)
    if trimmer is None:
        raise ValueError(
            "tombstone_writer=True: there is no Trimmer for this model, which chooses what a tombstone is made of; "
            "`everlong train trimmer` makes one, and without, tombstones are means"
        )
    return TombstoneWriter(_kv_writer(pack, config, served), ByStates(trimmer.settings.layers, trimmer.scores))


def _require_same_model(memory: Memory, prints: Fingerprint, model: Any) -> None:
    try:
        memory.check(prints)
    except ModelMismatchError as error:
        if getattr(model, "dtype", None) != torch.float16:
            raise
        hint = "float16 rounds small weights away: for a memory read in another dtype load it in bfloat16 or float32"
        raise ModelMismatchError(f"{error}; {hint}") from None


def _existing(memory: str | pathlib.Path | None, config: MemoryConfig | None) -> Memory | None:
    """The memory in that folder, where there is one."""
    if memory is None or not Memory.exists(memory):
        return None
    return Memory.open(memory, host_bytes=None if config is None else config.host_bytes)


def _manifest(served: Served, prints: Fingerprint, config: MemoryConfig) -> _core.Manifest:
    """Of a new memory; of text alone it has no layers."""
    from everlong.models import name_from_anywhere

    return _core.Manifest(
        weights=prints.weights,
        rope=prints.rope,
        tokenizer=prints.tokenizer,
        layers=served.layers,
        kv_heads=served.kv_heads,
        head_dim=served.head_dim,
        page_tokens=config.page_tokens,
        codec=config.codec,
        attributes={"model": name_from_anywhere(str(getattr(served.model, "name_or_path", "")))},
    )


def _encoder_of(config: MemoryConfig) -> Encoder:
    return load_encoder(config.encoder) if isinstance(config.encoder, str) else config.encoder
