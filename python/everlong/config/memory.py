"""The config of a memory: its groups of settings, and the parts at work."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import everlong._core as _core
from everlong.config.answer import AnswerConfig
from everlong.config.archive import ArchiveConfig
from everlong.config.frame import FrameConfig
from everlong.config.search import SearchConfig
from everlong.config.settings import Settings, types_of, where_is
from everlong.errors import UnsupportedModelError
from everlong.part_list import default_parts, part

LEAST_WINDOW = 256  # tokens; the smallest window of a model that the defaults' proportions serve

BRACKET_TOKENS = 2  # slots around the Detail Tokens of a block, one on each side
_OF_TEXT = tuple(kind.name for kind in _core.index_kinds() if not kind.from_model)  # index parts that need no keys


@dataclasses.dataclass(frozen=True)
class MemoryConfig(Settings):
    """Four groups of settings, and the parts at work. Budgets are in tokens."""

    frame: FrameConfig = dataclasses.field(default_factory=FrameConfig)  # zones of what the model attends to
    archive: ArchiveConfig = dataclasses.field(default_factory=ArchiveConfig)  # how what is read is cut and kept
    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)  # how a question is searched for
    answer: AnswerConfig = dataclasses.field(default_factory=AnswerConfig)  # when something comes back, and as what
    # Parts that take part in reading, recalling and answering (frame/part.py), in this order: everlong's
    # (everlong.parts), other packages' or your own. The default ones work where there is something for them to load.
    parts: tuple[Any, ...] = dataclasses.field(default_factory=default_parts)

    GROUPS: ClassVar[tuple[str, ...]] = ("frame", "archive", "search", "answer")

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        named = [name_of(one) for one in self.parts]
        if len(set(named)) < len(named):
            raise ValueError(f"parts: {', '.join(named)}: one of them is there twice")
        if self.answer.recall_mode in ("detail", "both") and not 0 < self.detail_slots <= self.frame.recalled_tokens:
            raise ValueError(
                f"answer.recall_mode={self.answer.recall_mode!r} brings back Detail Tokens: expected a part that "
                "writes them, such as everlong.parts.writer.Writer(), and room for those of a block "
                f"({self.detail_slots}) in frame.recalled_tokens ({self.frame.recalled_tokens})"
            )
        for one in self.parts:
            if check := getattr(one, "check", None):
                check(self)

    # --- what follows from several groups

    @property
    def recalled_zone_tokens(self) -> int:
        """R, or the blocks of the policy "recent" where these are more and there is room for them."""
        frame = self.frame
        if "recent" not in self.answer.policies:
            return frame.recalled_tokens
        others = frame.sink_tokens + frame.anchor_zone_tokens + frame.kept_tokens + frame.rolling_tokens
        room = frame.tokens - others - frame.evict_tokens - frame.chunk_tokens
        return max(frame.recalled_tokens, min(self.answer.recent_blocks * self.archive.block_tokens, room))

    @property
    def front_tokens(self) -> int:
        """P: slots before the rolling zone, when all zones are full."""
        frame = self.frame
        return frame.sink_tokens + frame.anchor_zone_tokens + frame.kept_tokens + self.recalled_zone_tokens

    @property
    def detail_tokens(self) -> int:
        """The most Detail Tokens of a block; 0 without a part that writes them."""
        return max((getattr(one, "detail_tokens", 0) for one in self.parts), default=0)

    @property
    def detail_slots(self) -> int:
        """Slots of a block as Detail Tokens, with their brackets; 0 without them."""
        return self.detail_tokens + BRACKET_TOKENS if self.detail_tokens > 0 else 0

    @property
    def keeps_payloads(self) -> bool:
        """Whether blocks store the keys and values of their kept tokens a second time."""
        by_parts = any(getattr(one, "keeps_payloads", False) for one in self.parts)
        return self.frame.kept_tokens > 0 and (self.answer.recall_mode == "kept" or by_parts)

    def os_config(self) -> _core.MemoryOsConfig:
        """Return what the Memory OS reads. The frame adds what parts decide."""
        frame, archive, answer = self.frame, self.archive, self.answer
        return _core.MemoryOsConfig(
            frame_tokens=frame.tokens,
            sink_tokens=frame.sink_tokens,
            recalled_tokens=self.recalled_zone_tokens,
            rolling_tokens=frame.rolling_tokens,
            evict_tokens=frame.evict_tokens,
            anchor_tokens=frame.anchor_tokens,
            anchors=frame.anchors,
            tombstones=frame.tombstones,
            kept_tokens=frame.kept_tokens,
            kept_share=frame.kept_share,
            kept_rungs=frame.kept_rungs,
            block_tokens=archive.block_tokens,
            least_tokens=archive.least_tokens,
            cooldown_tokens=archive.cooldown_tokens,
            recall_prompt="prompt" in answer.policies,
            recall_recent="recent" in answer.policies,
            recall_periodic="periodic" in answer.policies,
            recall_signal="signal" in answer.policies,
            prompt_rolling_tokens=answer.prompt_rolling_tokens,
            conversation_tokens=answer.conversation_tokens,
            recent_every=answer.recent_every,
            recent_blocks=answer.recent_blocks,
            periodic_every=answer.periodic_every,
            protect_tokens=answer.protect_tokens,
        )

    # --- presets

    @classmethod
    def fitting(cls, window: int) -> MemoryConfig:
        """Return the defaults, or their proportions scaled down for a model with a smaller window.

        UnsupportedModelError below LEAST_WINDOW: with a page in every zone nothing would be left for a question.
        """
        if window < LEAST_WINDOW:
            raise UnsupportedModelError(
                f"a window of {window:,} tokens is too short for a memory: {LEAST_WINDOW} is the least, or budgets of "
                "your own (MemoryConfig)"
            )
        default = cls()
        frame, page = default.frame, default.archive.page_tokens
        if frame.tokens <= window:
            return default

        def scaled(tokens: int) -> int:
            return max(page, tokens * window // frame.tokens // page * page)

        return default.changed(
            frame={
                "tokens": window,
                "sink_tokens": min(frame.sink_tokens, window // 16),
                "recalled_tokens": scaled(frame.recalled_tokens),
                "rolling_tokens": scaled(frame.rolling_tokens),
                "evict_tokens": scaled(frame.evict_tokens),
            },
            archive={"block_tokens": min(default.archive.block_tokens, scaled(frame.rolling_tokens))},
            answer={"conversation_tokens": scaled(default.answer.conversation_tokens)},
        )

    @classmethod
    def text_alone(cls, window: int | None = None) -> MemoryConfig:
        """Return a config for a model whose KV cannot be spliced: it reads recalled text again. `window` as in
        `fitting`.
        """
        default = cls() if window is None else cls.fitting(window)
        return default.changed(answer={"recall_mode": "text"})

    # --- this config, but for something

    def changed(
        self,
        *,
        frame: Mapping[str, Any] | None = None,
        archive: Mapping[str, Any] | None = None,
        search: Mapping[str, Any] | None = None,
        answer: Mapping[str, Any] | None = None,
        parts: Iterable[Any] | None = None,
    ) -> MemoryConfig:
        """Return it with these settings of its groups, and with these parts in place of its own."""
        given = {"frame": frame, "archive": archive, "search": search, "answer": answer}
        groups = {
            group: dataclasses.replace(getattr(self, group), **settings)
            for group, settings in given.items()
            if settings is not None
        }
        return dataclasses.replace(self, **groups, parts=self.parts if parts is None else tuple(parts))

    def with_part(self, one: Any) -> MemoryConfig:
        """Return it with this part in place of the one of its name, or after the others."""
        name, there = name_of(one), [name_of(other) for other in self.parts]
        if name not in there:
            return self.changed(parts=(*self.parts, one))
        return self.changed(parts=[one if name_of(other) == name else other for other in self.parts])

    def with_settings(self, settings: Iterable[str]) -> MemoryConfig:
        """Return it with settings written as `group.name=value`: "search.groups=2", "search.index=heads,lexical".

        `parts=towers,trimmer` names the parts at work. "trimmer.by=random" changes a part, and puts it to work where it
        is not. Raises ValueError for an unknown name, or a value of another type.
        """
        config = self
        waiting: dict[str, Any] = {}  # settings of one group are applied together: alone some of them may not be valid
        for setting in settings:
            path, equals, value = setting.partition("=")
            group, _, name = path.partition(".")
            if not equals or not (name or group == "parts"):
                place = where_is(group)
                hint = f": it is {place}" if place else ""
                raise ValueError(f"{setting!r}: expected group.name=value with a group of {_groups()}{hint}")
            if group == "parts":
                named = [one for one in value.split(",") if one and one != "none"]
                waiting["parts"] = tuple(config._part(one) for one in named)
            elif group in self.GROUPS:
                waiting[group] = waiting.get(group, getattr(config, group)).with_text(name, value)
            else:
                if group not in map(name_of, waiting.get("parts", config.parts)):
                    config._part(group)  # refused where there is none
                parts = waiting.get("parts", config.parts)
                old = next((one for one in parts if name_of(one) == group), None)
                new = (part(group) if old is None else old).with_text(name, value)
                waiting["parts"] = (*parts, new) if old is None else tuple(new if one is old else one for one in parts)
        return dataclasses.replace(config, **waiting)

    def _part(self, name: str) -> Any:
        return next((one for one in self.parts if name_of(one) == name), None) or part(name)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        groups = {group: getattr(self, group).to_dict() for group in self.GROUPS}
        parts = {name_of(one): one.to_dict() if isinstance(one, Settings) else {} for one in self.parts}
        return {**groups, "parts": parts}

    def written_as(self, manifest: _core.Manifest) -> MemoryConfig:
        """Return this config with what an existing memory decided when it was made: page length, codec, text alone."""
        config = self.changed(archive={"page_tokens": manifest.page_tokens, "codec": manifest.codec})
        return config.of_text_alone() if manifest.text_alone else config

    def of_text_alone(self) -> MemoryConfig:
        """Return this config without what needs archived keys: recalled text is read again, and found by text.

        ValueError where nothing is left of the index; for anchors, tombstones and kept tokens, which are keys and
        values; and for parts that cannot do without them.
        """
        index = tuple(kind for kind in self.search.index if kind in _OF_TEXT)
        if not index:
            raise ValueError(
                f"search.index={','.join(self.search.index)} searches keys, and a memory of text alone has none: "
                f"{', '.join(_OF_TEXT)} work"
            )
        if self.frame.anchor_zone_tokens > 0:
            raise ValueError(
                "frame.anchor_tokens and frame.tombstones are keys and values, and a memory of text alone has none"
            )
        if self.frame.kept_tokens > 0:
            raise ValueError("frame.kept_tokens are keys and values, and a memory of text alone has none")
        if self.archive.tagger == "model":
            raise ValueError(
                "archive.tagger='model' needs a KV cache, and a memory of text alone relies on none: 'keyphrases' works"
            )
        kept = [one.without_keys() if isinstance(one, Settings) else one for one in self.parts]  # type: ignore[attr-defined]
        return self.changed(
            search={"index": index}, answer={"recall_mode": "text"}, parts=[one for one in kept if one is not None]
        )

    def differs_for_good(self, other: MemoryConfig) -> list[str]:
        """Return the settings in which the two differ, of those that are fixed when a MemoryModel is made."""
        if [name_of(one) for one in self.parts] != [name_of(one) for one in other.parts]:
            return ["parts"]
        groups = [(group, getattr(self, group), getattr(other, group)) for group in self.GROUPS]
        parts = [(name_of(one), one, another) for one, another in zip(self.parts, other.parts, strict=True)]
        named: list[str] = []
        for group, mine, others in (*groups, *parts):
            if not isinstance(mine, Settings):
                named += [group] * (mine != others)
                continue
            fixed = [name for name in types_of(type(mine)) if name not in type(mine).between_questions()]
            named += [f"{group}.{name}" for name in fixed if getattr(mine, name) != getattr(others, name)]
        return named


def name_of(one: Any) -> str:
    """Return a part's name."""
    return str(getattr(one, "name", type(one).__name__))


def _groups() -> str:
    return f"{', '.join(MemoryConfig.GROUPS)}, or a part's name"
