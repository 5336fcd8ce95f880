"""The gold text alone in plain transformers: the model's own rate, which no memory can be blamed for."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from everlong_lab.eval.baselines.base import Baseline, Reply, generation_of
from everlong_lab.eval.gold import answer_from_passage
from everlong_lab.eval.plan import PlannedRun


@dataclasses.dataclass
class Gold(Baseline):
    name: ClassVar[str] = "gold"

    def answer(self, run: PlannedRun) -> Reply:
        question, reading = run.question, self._reading
        text = answer_from_passage(
            reading.model, reading.tokenizer, run.gold, question.text, **generation_of(question, reading.tokenizer)
        )
        return Reply(text, run.spans)

    def held_bytes(self) -> int:
        return 0
