"""How a memory is kept and used: one dataclass."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterable
from typing import Any, Literal

import everlong._core as _core
from everlong.errors import UnsupportedModelError
from everlong.text.vectors import Encoder, encoder_name

IndexPart = Literal["heads", "lexical", "meaning", "mean_pool", "hnsw", "embedding", "graph"]
HeadsKeys = Literal["bf16", "int8", "e4m3"]
Policy = Literal["prompt", "recent", "periodic", "signal", "tombstone", "walk", "off"]
Order = Literal["relevance", "time"]
RecallMode = Literal["kv", "text", "auto", "kept", "detail", "both"]
SegmenterKind = Literal["rules", "learned"]
TaggerKind = Literal["none", "keyphrases", "model"]
NarrowBy = Literal["times", "tags"]
TrimmerKind = Literal["newest", "random", "key_norm", "learned"]

LEAST_WINDOW = 256  # tokens, of a model that is served by its own proportions of the defaults

# The Memory OS owns these defaults (cpp/include/everlong/os/*.h).
_OS = _core.MemoryOsConfig()


@dataclasses.dataclass(frozen=True)
class MemoryConfig:
    """Budgets in tokens. The defaults are those that answered best on a real model."""

    frame_tokens: int = _OS.frame_tokens  # F: everything the model attends to; never above its trained window
    sink_tokens: int = _OS.sink_tokens  # S: the stream's first tokens, never evicted
    recalled_tokens: int = _OS.recalled_tokens  # R: budget of the recalled zone
    rolling_tokens: int = _OS.rolling_tokens  # M: the newest tokens
    evict_tokens: int = _OS.evict_tokens  # rolling is cut back to M once it is over by this much
    anchor_tokens: int = _OS.anchor_tokens  # first tokens of a topic that stay behind the sinks when it leaves; 0: off
    anchors: int = _OS.anchors  # topics whose first tokens stay, the newest
    tombstones: int = _OS.tombstones  # slots behind the sinks, each for a span that left; 0: off
    # Whether the KV writer makes them, each of the token that the pack's Trimmer holds the best of what left, or they
    # are the mean K and V. None: the KV writer, where the model's pack has one and a Trimmer.
    tombstone_writer: bool | None = None
    # N: slots for chosen tokens of closed blocks, which stay when the others leave; 0: off. The oldest blocks' tokens
    # are trimmed again, rung by rung to half of what they were (frame/trimming.py; os/kept_zone.h).
    kept_tokens: int = _OS.kept_tokens
    kept_share: int = _OS.kept_share  # of so many tokens of a block that was just closed one is kept
    kept_rungs: int = _OS.kept_rungs  # with 8 and 4: 64, 32, 16, 8 of a block of 512, each rung with as many slots
    trimmer: TrimmerKind = "newest"  # who chooses: "learned" is the Trimmer of the model's pack
    # Whether the KV writer of the model's pack puts into their keys and values something of the tokens that go, as a
    # block ends: what is kept, and comes back with `recall_mode` "kept", is what it wrote (parts/kv_writer).
    kept_writer: bool = False
    block_tokens: int = _OS.block_tokens  # L_max of a block
    least_tokens: int = _OS.least_tokens  # L_min: a turn or a signal ends no shorter block
    cooldown_tokens: int = _OS.cooldown_tokens  # signals passed over after one that came too soon
    # What of a text ends a block before L_max. "rules": turns and signals, and near L_max a paragraph or sentence.
    # "learned": where the model's own states say that a topic ends (parts/trigger), too.
    segmenter: SegmenterKind = "rules"
    block_mean_tokens: int = 256  # of "learned": what blocks of books come to, on average
    chunk_tokens: int = 512  # tokens a forward while reading
    # Budget of all that the frame holds on the device, while reading too (frame/budget.py); None: whatever it needs.
    frame_bytes: int | None = None

    page_tokens: Literal[64, 128] = 64  # unit of the index and of recall
    codec: Literal["fp32", "bf16", "e4m3", "e5m2"] = "e4m3"  # of the archive
    # Of what the memory keeps in RAM, its indexes first; None: half of what is free when it is opened.
    host_bytes: int | None = None

    # Several are fused (index/fusion.h). "heads" are found once the memory has 64 pages: before, words alone find.
    # "mean_pool" and "hnsw" search the same means of blocks' keys, the one exact, the other by a graph.
    # "meaning" searches where there is a pack with towers for the model (parts/towers), and is passed over
    # elsewhere. "graph" beside others: a walk goes on from what they found (parts/walker), and what it loads comes
    # back first, within the same `groups`; it goes through topics, too, where the memory has a `graph`.
    index: IndexPart | tuple[IndexPart, ...] = ("heads", "lexical", "meaning")
    encoder: str | Encoder = "minilm"  # of the part "embedding": a name for `load_encoder`, or an encoder
    # Where its vectors are searched: all of them, by a graph, or by lists that grow with them and whose router
    # `everlong train dnii` learns (retrieval/index.py).
    embedding_index: Literal["flat", "hnsw", "dnii"] = "flat"
    # Grow a graph over the blocks, in the background: `memory.graph`. Its vectors are the encoder's where the index has
    # "embedding", else of the blocks' keys; a memory of text alone without one has blocks in time, and no topics.
    graph: bool = False
    # How wide a topic may be: the root mean square distance of its blocks from their mean, in shares of that of all.
    graph_share: float = _core.GRAPH_SHARE
    # Who says what a block is about: "keyphrases", as it is archived, its own words that are rare in the memory
    # (text/keyphrases.py); "model", in the background, the model itself behind the block's first tokens
    # (retrieval/model_tags.py). A user's own tags (`read(tags=)`) count beside them.
    tagger: TaggerKind = "none"
    # What of a question leaves few blocks to search, where some block has it (graph/tag_tree.h): "times", which need
    # the extra `dates`, and "tags". All are searched where none has anything of it.
    narrow: NarrowBy | tuple[NarrowBy, ...] = ()
    groups: int = 4  # page groups recalled for a question
    # One group comes alone when its page has this many times the mass of the next and all parts agree. None: never;
    # what is said of like things helps a small model to the form of the answer.
    decisive: float | None = None
    # For so many seconds at most the model itself re-ranks what a search names first, up to 64 places, by how likely
    # the question is behind each (retrieval/rerank.py); at least 8 of them, whatever they take. 0: off. A memory of
    # text alone has no keys to put it behind: there it is off.
    rerank_seconds: float = 0.0
    # What a nat of the writer's decision adds to the fused scores of a block's pages: whether the block says, by its
    # Detail Tokens alone, what the question asks for (parts/writer). 0: off. Needs `details`, and a pack whose
    # writer learned to decide (`everlong train writer --why`).
    rerank_details: float = 0.0
    neighbours: int = 1  # pages on either side of a page that was found
    order: Order = "relevance"  # of groups in the frame: the most relevant last, or in order of time
    # "kv": recalled pages come back as the KV that was archived. "text": their tokens are read again, each after those
    # recalled before it. "auto": of several groups the last, the most relevant, is read again and so sees the others,
    # which come back as KV; one alone comes back as KV. With "text" a model whose KV cannot be spliced is served, too:
    # its memory is of text alone. "kept": blocks carry the keys and values of their chosen tokens (kept_tokens) once
    # more, on their own, and those come back, of the whole block, in place of its pages; pages of other blocks as "kv".
    # "detail": blocks come back as their Detail Tokens, up to `detail_blocks` of them; a block that has none, in pages
    # as "kv". "both": Detail Tokens, up to half of the recalled zone, then pages as "kv".
    recall_mode: RecallMode = "auto"
    # N: a block is written with so many Detail Tokens, soft tokens that stand for all of it; 0: with none. They are
    # what the pack's writer makes of it, or the means of N equal runs of its embeddings (parts/writer).
    details: int = 0
    detail_blocks: int = 16  # blocks that come back as Detail Tokens for a question, at most
    # So many sentences of what came back, the nearest to the question, stand in words right before it
    # (retrieval/quotes.py). A turn is remembered without them. 0: none.
    quotes: int = 1
    # Whether a pack's adapter, where there is one for the model, helps it to answer from what came back
    # (models/low_rank.py). Nothing that is archived depends on it.
    answer_adapter: bool = True
    # Attention temperature of a group that is surely not the one that was asked for: its keys are divided by it, so
    # that a like thing in it is less of a match than what the best group says. The nearer its probability is to the
    # best one's, the nearer to 1 is its temperature. 1: all come back as they were archived.
    recalled_temperature: float = 1.2
    query_distance: int = 2048  # the heads' queries are rotated to this distance from every key; 0: un-rotated
    retrieval_heads: int = 5  # how many heads calibration keeps; a memory that has some keeps those, and their distance
    # Of the keys of these heads in RAM: int8 and e4m3 take half of bf16. Of an archive in e4m3, the default `codec`,
    # e4m3 finds what bf16 does.
    heads_keys: HeadsKeys = "e4m3"
    # Of the GPU that the model is on, for these keys and the room to search them there; where they do not fit, and
    # with 0, questions are searched on the host.
    heads_device_bytes: int = 1 << 30
    # The same for the vectors of meaning, from when the memory is opened on.
    meaning_device_bytes: int = 1 << 28

    # "prompt": once a question, by its own queries. "recent": every `recent_every` generated tokens the newest blocks.
    # "periodic", "signal": every `periodic_every` generated tokens, or on <RETRIEVE>, by the newest tokens' queries.
    # "tombstone": where a generated token attends to a tombstone enough, what that one stands for (`tombstones` > 0).
    # "walk" brings nothing back: with a question, and every `walk_every` generated tokens, the Walker goes on by the
    # words of both, and what it comes to is read from disk into RAM, where what the others bring back finds it.
    policy: Policy | tuple[Policy, ...] = "prompt"  # several are combined
    # Of "prompt": once every question, or once a question at whose end the model says <RETRIEVE>, as it learned to
    # (parts/retrieve). Where it does not, the newest text stays as it is.
    prompt_recall: Literal["always", "learned"] = "always"
    prompt_rolling_tokens: int = _OS.prompt_rolling_tokens  # of the newest text, what stays right before a question
    # Of what was asked and said since text was read last, the newest tokens that stand before what a question recalls,
    # up to half of the recalled zone; where it recalls nothing, as many as that zone takes.
    conversation_tokens: int = _OS.conversation_tokens
    recent_every: int = _OS.recent_every
    recent_blocks: int = _OS.recent_blocks
    periodic_every: int = _OS.periodic_every
    walk_every: int = 32
    # From which score on a tombstone wakes (parts/tombstones); None: from the one that the model's pack says.
    tombstone_threshold: float | None = None
    # What comes back then. "span": what it stands for. "search": what the newest tokens' queries find. How surely a
    # tombstone says that something is needed, and how surely which, are two things.
    tombstone_recall: Literal["span", "search"] = "span"
    protect_tokens: int = _OS.protect_tokens  # T_protect: so many generated tokens keep what came back for them

    @property
    def anchor_zone_tokens(self) -> int:
        """A: slots of the zone behind the sinks."""
        return self.anchor_tokens * self.anchors + self.tombstones

    @property
    def recalled_zone_tokens(self) -> int:
        """R, or the blocks of the policy "recent" where these are more and there is room for them."""
        if "recent" not in self.policies:
            return self.recalled_tokens
        others = self.sink_tokens + self.anchor_zone_tokens + self.kept_tokens + self.rolling_tokens + self.evict_tokens
        room = self.frame_tokens - others - self.chunk_tokens
        return max(self.recalled_tokens, min(self.recent_blocks * self.block_tokens, room))

    @property
    def detail_slots(self) -> int:
        """Of a block as Detail Tokens, between their brackets; 0 without them."""
        return self.details + 2 if self.details > 0 else 0

    @property
    def detail_blocks_recalled(self) -> int:
        """How many blocks come back as Detail Tokens for a question: `detail_blocks`, as far as there is room."""
        if self.recall_mode not in ("detail", "both"):
            return 0
        room = self.recalled_tokens if self.recall_mode == "detail" else self.recalled_tokens // 2
        return min(self.detail_blocks, room // self.detail_slots)

    @property
    def front_tokens(self) -> int:
        """P: slots before the rolling zone, when all zones are full."""
        return self.sink_tokens + self.anchor_zone_tokens + self.kept_tokens + self.recalled_zone_tokens

    @property
    def policies(self) -> frozenset[Policy]:
        """`policy` as a set; "off" and an empty tuple are the empty one."""
        named = (self.policy,) if isinstance(self.policy, str) else self.policy
        return frozenset(policy for policy in named if policy != "off")

    def __post_init__(self) -> None:
        for name in (
            "page_tokens",
            "codec",
            "embedding_index",
            "order",
            "recall_mode",
            "heads_keys",
            "segmenter",
            "trimmer",
            "tagger",
            "tombstone_recall",
            "prompt_recall",
        ):
            require_choice(name, getattr(self, name), _TYPES[name])
        if isinstance(self.index, str):
            object.__setattr__(self, "index", (self.index,))
        if not self.index:
            raise ValueError(f"index is empty, expected some of {', '.join(typing.get_args(IndexPart))}")
        for part in self.index:
            require_choice("index", part, IndexPart)
        if set(self.index) == {"graph"}:
            raise ValueError('index is "graph" alone: a walk goes on from what other parts find, such as "lexical"')
        if isinstance(self.narrow, str):
            object.__setattr__(self, "narrow", (self.narrow,))
        for by in self.narrow:
            require_choice("narrow", by, NarrowBy)
        for policy in (self.policy,) if isinstance(self.policy, str) else self.policy:
            require_choice("policy", policy, Policy)
        if not (math.isfinite(self.recalled_temperature) and self.recalled_temperature >= 1):
            raise ValueError(f"recalled_temperature is {self.recalled_temperature}, expected at least 1")
        if self.tombstone_threshold is not None and not math.isfinite(self.tombstone_threshold):
            raise ValueError(f"tombstone_threshold is {self.tombstone_threshold}, expected a number, or none")
        if not math.isfinite(self.rerank_seconds):
            raise ValueError(f"rerank_seconds is {self.rerank_seconds}, expected a number of seconds")
        if not math.isfinite(self.rerank_details):
            raise ValueError(f"rerank_details is {self.rerank_details}, expected a weight")
        if self.rerank_details and not self.details:
            raise ValueError("rerank_details looks at blocks' Detail Tokens, and details is 0: they have none")
        if not 0 < self.graph_share <= 1:
            raise ValueError(f"graph_share is {self.graph_share}, expected above 0, at most 1")
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least {least}")
        if self.recall_mode in ("detail", "both") and not 0 < self.detail_slots <= self.recalled_tokens:
            raise ValueError(
                f"recall_mode={self.recall_mode!r}: details is {self.details}, expected at least 1, and the Detail "
                f"Tokens of a block between their brackets within recalled_tokens, {self.recalled_tokens}"
            )
        if self.segmenter == "learned" and not self.least_tokens < self.block_mean_tokens < self.block_tokens:
            raise ValueError(
                f"block_mean_tokens is {self.block_mean_tokens}, expected more than least_tokens, {self.least_tokens}, "
                f"and less than block_tokens, {self.block_tokens}"
            )
        for name in _TYPES:
            value, most = getattr(self, name), _MOST_BYTES if name.endswith("_bytes") else _MOST_TOKENS
            if isinstance(value, int) and value > most:
                raise ValueError(f"{name} is {value}, expected at most {most:,}")

    @classmethod
    def fitting(cls, window: int) -> MemoryConfig:
        """The defaults, or their proportions scaled down to a model whose trained window is smaller.

        UnsupportedModelError below LEAST_WINDOW: of a page in every zone nothing would be left for a question.
        """
        if window < LEAST_WINDOW:
            raise UnsupportedModelError(
                f"a window of {window:,} tokens is too short for a memory: {LEAST_WINDOW} is the least, or budgets of "
                "your own (MemoryConfig)"
            )
        default = cls()
        if default.frame_tokens <= window:
            return default
        page = default.page_tokens

        def scaled(tokens: int) -> int:
            return max(page, tokens * window // default.frame_tokens // page * page)

        return dataclasses.replace(
            default,
            frame_tokens=window,
            sink_tokens=min(default.sink_tokens, window // 16),
            recalled_tokens=scaled(default.recalled_tokens),
            conversation_tokens=scaled(default.conversation_tokens),
            rolling_tokens=scaled(default.rolling_tokens),
            evict_tokens=scaled(default.evict_tokens),
            block_tokens=min(default.block_tokens, scaled(default.rolling_tokens)),
        )

    def with_settings(self, settings: Iterable[str]) -> MemoryConfig:
        """This config with settings written as `name=value`: "groups=2", "recall_mode=text", "index=heads,lexical".

        Raises ValueError for a name that there is not, or a value of another type.
        """
        changed: dict[str, Any] = {}
        for setting in settings:
            name, equals, value = setting.partition("=")
            if not equals or name not in _TYPES:
                raise ValueError(f"{setting!r}: expected name=value with a name of {', '.join(_TYPES)}")
            changed[name] = _parsed(setting, value, _TYPES[name])
        return dataclasses.replace(self, **changed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an encoder that is an object stands by what tells its vectors from another's."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if not isinstance(self.encoder, str):
            values["encoder"] = encoder_name(self.encoder)
        return values

    def written_as(self, manifest: _core.Manifest) -> MemoryConfig:
        """This config with what an existing memory decided when it was made: its page length, its codec, text alone."""
        kept = {"page_tokens": manifest.page_tokens, "codec": manifest.codec}
        config = dataclasses.replace(self, **kept)  # type: ignore[arg-type]  # checked by the core on opening
        return config.of_text_alone() if manifest.text_alone else config

    def of_text_alone(self) -> MemoryConfig:
        """This config without what needs archived keys: recalled text is read again, and found by text.

        ValueError where nothing is left of the index, for anchors, tombstones and kept tokens, which are keys and
        values, for Detail Tokens, which stand among them, and for the learned segmenter, which reads states.
        """
        parts = tuple(part for part in self.index if part in _OF_TEXT)
        if not set(parts) - {"graph"}:
            raise ValueError(
                f"index={','.join(self.index)} searches keys, and a memory of text alone has none: "
                f"{', '.join(_OF_TEXT)} work"
            )
        if self.anchor_zone_tokens > 0:
            raise ValueError("anchor_tokens and tombstones are keys and values, and a memory of text alone has none")
        if self.kept_tokens > 0:
            raise ValueError("kept_tokens are keys and values, and a memory of text alone has none")
        if self.tagger == "model":
            raise ValueError(
                "tagger='model' needs a KV cache, and a memory of text alone relies on none: 'keyphrases' works"
            )
        if "walk" in self.policies:
            raise ValueError("policy='walk' reads keys and values ahead, and a memory of text alone has none")
        if self.details > 0:
            raise ValueError("details are soft tokens, and a memory of text alone brings back nothing but text")
        if self.segmenter == "learned":
            raise ValueError("segmenter='learned' needs the model's states, and a memory of text alone reads none")
        return dataclasses.replace(self, index=parts, recall_mode="text")

    def os_config(self) -> _core.MemoryOsConfig:
        """The part that the Memory OS reads."""
        return _core.MemoryOsConfig(
            frame_tokens=self.frame_tokens,
            sink_tokens=self.sink_tokens,
            recalled_tokens=self.recalled_zone_tokens,
            rolling_tokens=self.rolling_tokens,
            evict_tokens=self.evict_tokens,
            anchor_tokens=self.anchor_tokens,
            anchors=self.anchors,
            tombstones=self.tombstones,
            kept_tokens=self.kept_tokens,
            kept_share=self.kept_share,
            kept_rungs=self.kept_rungs,
            block_tokens=self.block_tokens,
            least_tokens=self.least_tokens,
            cooldown_tokens=self.cooldown_tokens,
            recall_prompt="prompt" in self.policies,
            recall_recent="recent" in self.policies,
            recall_periodic="periodic" in self.policies,
            recall_signal="signal" in self.policies,
            recall_tombstone="tombstone" in self.policies,
            tombstone_threshold=0.0 if self.tombstone_threshold is None else self.tombstone_threshold,
            prompt_rolling_tokens=self.prompt_rolling_tokens,
            conversation_tokens=self.conversation_tokens,
            recent_every=self.recent_every,
            recent_blocks=self.recent_blocks,
            periodic_every=self.periodic_every,
            protect_tokens=self.protect_tokens,
        )


_OF_TEXT: tuple[IndexPart, ...] = ("lexical", "embedding", "graph")  # parts of the index that need no keys

# What only a search reads: it may change from one question to the next.
SEARCH_SETTINGS = frozenset(
    {
        "index",
        "narrow",
        "groups",
        "quotes",
        "decisive",
        "detail_blocks",
        "tombstone_recall",
        "rerank_seconds",
        "rerank_details",
        "neighbours",
        "order",
        "recalled_temperature",
        "query_distance",
        "retrieval_heads",
        "heads_keys",
        "heads_device_bytes",
    }
)

# What the Memory OS does not check.
_LEAST = {
    "block_mean_tokens": 1,
    "chunk_tokens": 1,
    "details": 0,
    "detail_blocks": 1,
    "groups": 1,
    "quotes": 0,
    "rerank_seconds": 0,
    "rerank_details": 0,
    "neighbours": 0,
    "query_distance": 0,
    "retrieval_heads": 1,
    "walk_every": 1,
    "heads_device_bytes": 0,
    "meaning_device_bytes": 0,
}
_MOST_TOKENS, _MOST_BYTES = (1 << 31) - 1, (1 << 63) - 1  # as the core counts them
_TYPES = typing.get_type_hints(MemoryConfig)


def require_choice(name: str, value: Any, choices: Any) -> None:
    """ValueError that lists what there is, unless `value` is one of the Literal type `choices`."""
    there = typing.get_args(choices)
    if value not in there:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(str, there))}")


def _parsed(setting: str, value: str, kind: Any) -> Any:
    """The value of a setting in the type of its field: text, number, yes or no, choices, or None where it may be."""
    origin, choices = typing.get_origin(kind), typing.get_args(kind)
    if kind is str:
        return value
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise ValueError(f"{setting!r}: expected true or false")
        return value.lower() == "true"
    if kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"{setting!r}: expected {'a whole number' if kind is int else 'a number'}") from None
    if origin is Literal:
        named = {str(choice): choice for choice in choices}
        if value not in named:
            raise ValueError(f"{setting!r}: expected one of {', '.join(named)}")
        return named[value]
    if origin is tuple:
        return tuple(_parsed(setting, part, choices[0]) for part in value.split(",") if part)
    if type(None) in choices and value.lower() == "none":
        return None
    single = [choice for choice in choices if typing.get_origin(choice) is not tuple and choice is not type(None)]
    several = [choice for choice in choices if typing.get_origin(choice) is tuple]
    return _parsed(setting, value, several[0] if several and "," in value else single[0])
