"""everlong as it is configured, and with one part of its index alone."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

from everlong.config import MemoryConfig
from everlong.config.search import IndexPart
from everlong.config.settings import where_is
from everlong.generation.memory_model import MemoryModel
from everlong_lab.eval.baselines.base import Baseline, CannotAskError, ReadTexts, Reply, generation_of, where_of
from everlong_lab.eval.plan import PlannedRun


@dataclasses.dataclass
class _Recalling(Baseline):
    """The memory that is evaluated. Fields left at None are as the memory is configured."""

    parts: ClassVar[tuple[IndexPart, ...] | None] = None  # of the index
    groups: int | None = None
    quotes: int | None = None
    quotes_alone: bool | None = None
    decisive: float | None = None
    recalled_temperature: float | None = None

    def __post_init__(self) -> None:
        _changed(MemoryConfig(), self.changes())  # raises for what is no setting of a memory

    def changes(self) -> dict[str, Any]:
        """Return what differs from the memory's own settings."""
        own: dict[str, Any] = {"index": self.parts, **dataclasses.asdict(self)}
        return {key: value for key, value in own.items() if value is not None}

    def check(self, model: Any, tokenizer: Any, config: MemoryConfig) -> None:
        if "embedding" in self.changes().get("index", ()) and "embedding" not in config.search.index:
            raise ValueError(
                f"baseline {self.name}: the memory that is evaluated has no part embedding, its index is "
                f"{', '.join(config.search.index)}: read it with --set search.index="
                f"{','.join((*config.search.index, 'embedding'))}"
            )

    def prepare(self, reading: ReadTexts) -> None:
        self._reading = reading
        # The first question pays for finding the retrieval heads, so it comes before any that is timed.
        with configured(reading.mm, **self.changes()) as mm:
            mm.recall("What is said here?")
            self._require_keys(mm)

    def _require_keys(self, mm: MemoryModel) -> None:
        """Raise CannotAskError where a part alone has nothing to search.

        Its figure would be that of the words under another name, or of nothing.
        """
        index = mm.config.search.index
        if index == ("heads",) and mm.profile is None:
            raise CannotAskError(f"{self.name}: this memory has no retrieval heads; it is too short, or of text alone")
        if index == ("mean_pool",) and mm.memory.core.manifest().text_alone:
            raise CannotAskError(f"{self.name}: a memory of text alone has no keys")

    def answer(self, run: PlannedRun) -> Reply:
        question = run.question
        with configured(self._reading.mm, **self.changes()) as mm:
            generation = generation_of(question, mm.tokenizer)
            answer = mm.generate(question.text, **generation, remember=False, where=where_of(question))
        return Reply(answer.text, tuple(recall.span for recall in answer.recalled))

    def held_bytes(self) -> int:
        return memory_bytes(self._reading)


@dataclasses.dataclass
class Everlong(_Recalling):
    """All of it, or with some parts of its index: `everlong:index=heads+lexical`."""

    name: ClassVar[str] = "everlong"
    index: tuple[IndexPart, ...] | None = None


@dataclasses.dataclass
class Survey(_Recalling):
    """`MemoryModel.survey`: answers from notes of all text, without a search."""

    name: ClassVar[str] = "survey"
    note_tokens: int | None = None

    def changes(self) -> dict[str, Any]:
        return {}

    def answer(self, run: PlannedRun) -> Reply:
        question, mm = run.question, self._reading.mm
        generation = generation_of(question, mm.tokenizer)
        answer = mm.survey(question.text, where=where_of(question), note_tokens=self.note_tokens, **generation)
        return Reply(answer.text, tuple(recall.span for recall in answer.recalled))


@dataclasses.dataclass
class Heads(_Recalling):
    """Retrieval heads alone."""

    name: ClassVar[str] = "heads"
    parts: ClassVar[tuple[IndexPart, ...] | None] = ("heads",)


@dataclasses.dataclass
class Lexical(_Recalling):
    """The token-id index alone."""

    name: ClassVar[str] = "lexical"
    parts: ClassVar[tuple[IndexPart, ...] | None] = ("lexical",)


@dataclasses.dataclass
class MeanPool(_Recalling):
    """The mean of a block's keys of the last layer, by cosine: a common first guess. All pages of a block score the
    same.
    """

    name: ClassVar[str] = "mean_pool"
    parts: ClassVar[tuple[IndexPart, ...] | None] = ("mean_pool",)


def memory_bytes(reading: ReadTexts) -> int:
    """Return the bytes of the memory, wherever it is kept, and of the frame."""
    stats = reading.mm.memory.stats()
    return max(stats.disk_bytes, stats.payload_bytes) + reading.mm.config.frame.tokens * reading.kv_token_bytes


@contextlib.contextmanager
def configured(mm: MemoryModel, **changes: Any) -> Iterator[MemoryModel]:
    """Give `mm` other settings of recall; afterwards it has its own again."""
    own = mm.config
    mm.config = _changed(own, changes)
    try:
        yield mm
    finally:
        mm.config = own


def _changed(config: MemoryConfig, changes: dict[str, Any]) -> MemoryConfig:
    """Return the config with these settings, each in the group that has it."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        group = where_is(name).partition(".")[0]
        groups.setdefault(group if group in MemoryConfig.GROUPS else "search", {})[name] = value
    return config.changed(**groups)
