"""What each of the scripted streams (support/streams.py) is run with: its settings, its model, its learned parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from everlong import MemoryConfig
from everlong.config import name_of
from everlong.models.low_rank import LowRankMaps, MapSettings, mapped_layers
from everlong.parts.kv_writer import KvWriter
from everlong.parts.retrieve import Retrieve
from everlong.parts.retrieve.model import RETRIEVE, RetrieveRow, RetrieveSettings
from everlong.parts.tombstones import Tombstones
from everlong.parts.tombstones.model import TOMBSTONES, TombstoneHeads
from everlong.parts.trigger import Trigger
from everlong.parts.trimmer import Trimmer
from everlong.parts.walker import Walker
from everlong.parts.writer import Writer
from support.encoder import CountingEncoder
from support.parts import kv_writer, towers, trigger
from support.settings import SMALL


def _retrieve(model: Any) -> Any:
    torch.manual_seed(3)
    row, maps = (
        RetrieveRow(RetrieveSettings(model.config.hidden_size, 0.5)),
        LowRankMaps(MapSettings(2), mapped_layers(model)),
    )
    row.row.weight.data.normal_()
    row.row.bias.data.fill_(0.3)
    return row.part_with(maps, {})


_HEEDED = TombstoneHeads(heads=((0, 1), (1, 0)), weights=(0.5, 0.5), bias=0.0, threshold=-1e6)
LEARNED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "towers": lambda model: dict(towers.drawn_pack(model).parts),
    "trigger": lambda model: dict(trigger.drawn_pack(model).parts),
    "trimmer": lambda model: {"trimmer": kv_writer.drawn_trimmer().part({})},
    "kv": lambda model: {
        "trimmer": kv_writer.drawn_trimmer().part({}),
        "kv-writer": kv_writer.drawn_writer(model).part({}),
    },
    "tombstones": lambda model: {TOMBSTONES: _HEEDED.part({"text": "none"})},
    "retrieve": lambda model: {RETRIEVE: _retrieve(model)},
}


@dataclasses.dataclass(frozen=True)
class Stream:
    """A script's config, the model, and what of the script is its own."""

    config: MemoryConfig
    model: tuple[str, str] = ("llama", "default")  # its kind, and its RoPE, if it has one
    learned: str = ""  # of LEARNED
    folder: bool = True
    chat: bool = False
    more: tuple[str, ...] = ()  # steps beside those that are drawn


def _stream(*parts: Any, frame: Any = None, archive: Any = None, search: Any = None, **own: Any) -> Stream:
    """`own` are settings of an answer, or fields of Stream."""
    fields = {name: own.pop(name) for name in ("model", "learned", "folder", "chat", "more") if name in own}
    named = {name_of(one): one for one in (*SMALL.parts, *parts)}
    search = {"index": ("lexical",), **(search or {})}
    config = SMALL.changed(frame=frame, archive=archive, search=search, answer=own, parts=named.values())
    return Stream(config, **fields)


_KEPT, _STONES = {"kept_tokens": 32, "kept_rungs": 3}, {"tombstones": 4}
_ANCHORS, _ALL = {"anchor_tokens": 4, "anchors": 3}, ("prompt", "recent", "periodic", "signal")
_EVERY = {"recent_every": 6, "recent_blocks": 1, "periodic_every": 5, "protect_tokens": 3}
STREAMS = {
    "prompt": _stream(),
    "recent": _stream(policy="recent", **_EVERY),
    "periodic": _stream(policy="periodic", **_EVERY),
    "signal": _stream(policy="signal", **_EVERY, more=("signal", "talk", "signal", "talk")),
    "tombstone": _stream(
        Tombstones(), Writer(tokens=4), frame=_STONES, learned="tombstones", policy="off", protect_tokens=4
    ),
    "tombstone search": _stream(Tombstones(recall="search"), frame=_STONES, learned="tombstones", protect_tokens=2),
    "walk": _stream(Walker(), archive={"graph": True}, search={"index": ("lexical", "mean_pool")}),
    "walk ahead": _stream(Walker(ahead_every=4), policy=("prompt", "periodic"), **_EVERY),
    "all policies": _stream(policy=_ALL, **_EVERY, more=("signal", "talk")),
    "protected": _stream(policy=_ALL, **_EVERY | {"protect_tokens": 40}, more=("talk", "signal")),
    "off": _stream(policy="off", prompt_rolling_tokens=64),
    "rolling before a question": _stream(prompt_rolling_tokens=100, conversation_tokens=64),
    "no conversation": _stream(conversation_tokens=0, policy=("prompt", "recent"), **_EVERY),
    "kept newest": _stream(frame=_KEPT),
    "kept by keys": _stream(Trimmer(by="key_norm"), frame=_KEPT | {"kept_share": 4}, recall_mode="kept"),
    "kept at random": _stream(Trimmer(by="random"), frame=_KEPT, recall_mode="kv"),
    "kept, learned": _stream(Trimmer(), frame=_KEPT | {"kept_rungs": 1}, learned="trimmer", recall_mode="kept"),
    "kept, written": _stream(Trimmer(), KvWriter(kept=True), frame=_KEPT, learned="kv", recall_mode="kept"),
    "anchors": _stream(frame=_ANCHORS),
    "anchors, tombstones": _stream(frame=_ANCHORS | _STONES, policy=_ALL, **_EVERY),
    "all zones": _stream(Trimmer(by="key_norm"), frame=_ANCHORS | _STONES | _KEPT, model=("qwen3", "yarn")),
    "written tombstones": _stream(KvWriter(tombstones=True), frame=_STONES, learned="kv"),
    "topics": _stream(Trigger(mean_tokens=80), frame=_ANCHORS, archive={"least_tokens": 16}, learned="trigger"),
    "details": _stream(Writer(tokens=8, blocks=6), recall_mode="detail", order="time"),
    "details and pages": _stream(Writer(tokens=8), recall_mode="both", quotes=1, frame=_KEPT),
    "read again": _stream(recall_mode="text", order="time"),
    "by time": _stream(recall_mode="kv", order="time", recalled_temperature=1.0, search={"groups": 2, "neighbours": 0}),
    "quotes": _stream(quotes=2, recall_mode="auto", search={"decisive": 1.1}, chat=True, more=("messages", "messages")),
    "quotes alone": _stream(quotes=3, quotes_alone=True, policy=_ALL, **_EVERY, search={"groups": 6}),
    "heads": _stream(search={"index": ("heads", "lexical")}, more=("calibrate", "ask", "recall")),
    "heads of int8": _stream(
        search={"index": "heads", "heads_keys": "int8", "query_distance": 0}, more=("calibrate", "ask")
    ),
    "meaning": _stream(search={"index": ("lexical", "meaning")}, learned="towers"),
    "means": _stream(search={"index": ("mean_pool", "hnsw")}, archive={"graph": True, "tagger": "keyphrases"}),
    "an encoder": _stream(search={"index": "embedding", "encoder": CountingEncoder(), "embedding_index": "hnsw"}),
    "lists": _stream(
        search={"index": ("lexical", "embedding"), "encoder": CountingEncoder(), "embedding_index": "dnii"}
    ),
    "asked again by the model": _stream(search={"rerank_seconds": 1e4}, archive={"codec": "bf16", "page_tokens": 128}),
    "asked for": _stream(Retrieve(), learned="retrieve", archive={"codec": "e5m2"}),
    "layers of their own": _stream(model=("gemma3", "nested"), archive={"codec": "e4m3"}, frame=_KEPT),
    "two ropes": _stream(model=("phi3", "longrope"), frame={"sink_tokens": 0}, more=("other", "ask", "recall")),
    "text alone": _stream(model=("gpt2", ""), recall_mode="text", policy=_ALL, **_EVERY),
    "in RAM": _stream(folder=False, archive={"tagger": "keyphrases"}, search={"narrow": "tags"}, more=("other", "ask")),
}
