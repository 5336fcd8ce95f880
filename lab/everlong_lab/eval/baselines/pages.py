"""Pages that no question chose: random ones, the control of every recall, and the newest."""

from __future__ import annotations

import dataclasses
import random
import zlib
from collections.abc import Sequence
from typing import ClassVar

import everlong._core as _core
from everlong_lab.eval.baselines.base import Baseline, ReadTexts, Reply, generation_of, where_of
from everlong_lab.eval.baselines.memory import memory_bytes
from everlong_lab.eval.plan import PlannedRun

_ALL = 2**31 - 1  # blocks


@dataclasses.dataclass
class RandomPages(Baseline):
    """As many random pages as everlong would recall, from the sources that the question is about."""

    name: ClassVar[str] = "random"
    seed: int = 0

    def pages(self, run: PlannedRun) -> Sequence[_core.PageRef]:
        mm, os = self._reading.mm, self._reading.mm.frame.os
        seed, budget = self.seed + zlib.crc32(run.id.encode()), page_budget(self._reading)
        if not run.question.sources:
            return mm.memory.core.search.random_pages(os.stream, os.rolling[0], budget, seed)
        there = mm.memory.core.search.recent_pages(os.stream, os.rolling[0], _ALL, **where_of(run.question).core())
        return random.Random(seed).sample(there, min(budget, len(there)))

    def answer(self, run: PlannedRun) -> Reply:
        mm, question = self._reading.mm, run.question
        pages = self.pages(run)
        answer = mm.generate(question.text, **generation_of(question, mm.tokenizer), recall=pages, remember=False)
        return Reply(answer.text, tuple((page.begin, page.end) for page in pages))

    def held_bytes(self) -> int:
        return memory_bytes(self._reading)


@dataclasses.dataclass
class RecentPages(RandomPages):
    """The same number of pages, but the newest that have left the window."""

    name: ClassVar[str] = "recent"

    def pages(self, run: PlannedRun) -> Sequence[_core.PageRef]:
        mm, os = self._reading.mm, self._reading.mm.frame.os
        budget = page_budget(self._reading)
        where = where_of(run.question).core()
        return mm.memory.core.search.recent_pages(os.stream, os.rolling[0], budget, **where)[-budget:]


def page_budget(reading: ReadTexts) -> int:
    config = reading.mm.config
    return min(
        config.search.groups * (1 + 2 * config.search.neighbours),
        config.frame.recalled_tokens // config.archive.page_tokens,
    )
