"""The result of needles in a haystack: every question, and the rates by length, depth and kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from everlong_lab.corpora.facts import Kind
from everlong_lab.eval.niah.config import NiahConfig
from everlong_lab.eval.statistics import rate
from everlong_lab.eval.tables import Report, Table


@dataclasses.dataclass(frozen=True)
class NiahAnswer:
    """One question at one length."""

    kind: Kind
    key: str
    question: str
    answer: str
    length: int  # tokens read so far
    depth: float  # of the fact in them, 0 to 1
    depth_bin: int  # 0 .. depths - 1
    span: tuple[int, int]  # tokens of the stream that state the fact
    reply: str
    right: bool
    recalled_rank: int | None  # 1 for the best group; None when no group holds the whole fact
    groups: tuple[tuple[int, int], ...]  # spans that came back, best first
    oracle_reply: str
    oracle_right: bool
    window_reply: str | None  # None where it was not asked
    window_right: bool | None
    seconds: float  # from the answer before it to this one; several questions are answered at once


@dataclasses.dataclass(frozen=True)
class Share:
    """Rates over some questions, with the 95 % Wilson interval of `accuracy`; None where nothing was asked."""

    n: int
    accuracy: float
    low: float
    high: float
    oracle_accuracy: float
    window_accuracy: float | None
    recall_at_k: float


@dataclasses.dataclass(frozen=True)
class NiahReport(Report):
    accuracy: float
    oracle_accuracy: float
    window_accuracy: float | None
    recall_at_k: float
    intervals: dict[str, tuple[float, float]]  # 95 % Wilson, of the four rates above
    by_length: dict[str, Share]
    by_depth: dict[str, Share]  # at every length; keyed by the middle of the bin, 0 to 1
    by_kind: dict[str, Share]
    config: dict[str, Any]  # of NiahConfig, with the model's dtype; under "memory" that of the memory
    model: str
    tokens: int
    questions: tuple[NiahAnswer, ...]
    seconds: dict[str, float]
    made_with: list[dict[str, Any]]  # everything that had a part in it once, oldest first: everlong.models.provenance

    @property
    def longest(self) -> int:
        return max(answers.length for answers in self.questions)

    def at_longest(self) -> tuple[NiahAnswer, ...]:
        return tuple(answers for answers in self.questions if answers.length == self.longest)

    def tables(self) -> Iterator[Table | str]:
        """Yield tables by kind and by length."""
        for by, shares in (("kind of fact", self.by_kind), ("haystack, tokens", self.by_length)):
            columns = (by, "asked", "gold text alone", "window alone", "everlong", "95 %", "group recalled")
            rows = [
                [
                    f"{int(label):,}" if label.isdigit() else label,
                    str(share.n),
                    _percent(share.oracle_accuracy),
                    _percent(share.window_accuracy),
                    _percent(share.accuracy),
                    f"{share.low:.0%} - {share.high:.0%}",
                    _percent(share.recall_at_k),
                ]
                for label, share in shares.items()
            ]
            yield Table("", columns, rows)
        yield (
            f"{self.model}: {self.tokens:,} tokens read in {self.seconds['read']:.0f} s, "
            f"{len(self.questions)} questions, {self.seconds['total']:.0f} s in all"
        )


def summarise(
    answers: Sequence[NiahAnswer],
    config: NiahConfig,
    model: str,
    tokens: int,
    seconds: dict[str, float],
    memory: Mapping[str, Any] | None = None,
    dtype: str = "",
    made_with: Sequence[dict[str, Any]] = (),
) -> NiahReport:
    """Return the report of questions asked of a memory with these settings. Raises ValueError when there is none."""
    if not answers:
        raise ValueError("no question was asked")
    overall = _share(answers)
    window = [one.window_right for one in answers if one.window_right is not None]
    outcomes = {
        "accuracy": [one.right for one in answers],
        "oracle_accuracy": [one.oracle_right for one in answers],
        "window_accuracy": window,
        "recall_at_k": [one.recalled_rank is not None for one in answers],
    }
    rates = {key: rate(values) for key, values in outcomes.items() if values}
    return NiahReport(
        accuracy=overall.accuracy,
        oracle_accuracy=overall.oracle_accuracy,
        window_accuracy=overall.window_accuracy,
        recall_at_k=overall.recall_at_k,
        intervals={key: (value.low, value.high) for key, value in rates.items()},
        by_length=_shares(answers, lambda one: one.length, str),
        by_depth=_shares(answers, lambda one: one.depth_bin, lambda number: f"{(number + 0.5) / config.depths:.3g}"),
        by_kind=_shares(answers, lambda one: config.kinds.index(one.kind), lambda number: config.kinds[number]),
        config={**dataclasses.asdict(config), "dtype": dtype, "memory": dict(memory or {})},
        model=model,
        tokens=tokens,
        questions=tuple(answers),
        seconds=seconds,
        made_with=list(made_with),
    )


def _shares(
    answers: Sequence[NiahAnswer], group: Callable[[NiahAnswer], int], label: Callable[[int], str]
) -> dict[str, Share]:
    return {
        label(value): _share([one for one in answers if group(one) == value])
        for value in sorted(set(map(group, answers)))
    }


def _share(answers: Sequence[NiahAnswer]) -> Share:
    right = rate(one.right for one in answers)
    window = [one.window_right for one in answers if one.window_right is not None]
    return Share(
        n=right.n,
        accuracy=right.rate,
        low=right.low,
        high=right.high,
        oracle_accuracy=rate(one.oracle_right for one in answers).rate,
        window_accuracy=rate(window).rate if window else None,
        recall_at_k=rate(one.recalled_rank is not None for one in answers).rate,
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
