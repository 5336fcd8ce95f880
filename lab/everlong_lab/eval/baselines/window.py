"""Sinks and the newest tokens: what is left of StreamingLLM (Xiao et al. 2023) when nothing comes back."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from everlong_lab.eval.baselines.base import Baseline, Reply, generation_of
from everlong_lab.eval.plan import PlannedRun


@dataclasses.dataclass
class Window(Baseline):
    name: ClassVar[str] = "window"

    def answer(self, run: PlannedRun) -> Reply:
        mm = self._reading.mm
        begin, end = mm.frame.os.rolling
        generation = generation_of(run.question, mm.tokenizer)
        text = mm.generate(run.question.text, **generation, recall=False, remember=False).text
        return Reply(text, ((begin, end),))

    def held_bytes(self) -> int:
        begin, end = self._reading.mm.frame.os.rolling
        return (self._reading.mm.frame.os.sinks + end - begin) * self._reading.kv_token_bytes
