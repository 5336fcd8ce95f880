"""Needle in a haystack: facts planted in books, asked with the memory, the window alone and the gold text alone.

One reading pass serves every length: it stops at each, and asks. The gold text alone, about 512 tokens around a fact in
plain transformers, gives the model's own rate, which no memory can be blamed for; the window alone is the same
MemoryModel without recall.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from everlong.data import CHARACTERS_PER_TOKEN, gather_books
from everlong.eval.facts import DEFAULT_KINDS, Fact, Kind, make_facts
from everlong.eval.gold import answer_from_passage
from everlong.eval.haystack import Haystack, Needle, build_haystack
from everlong.eval.statistics import rate

if TYPE_CHECKING:
    from everlong.model import MemoryModel

Log = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class NiahConfig:
    tokens: int = 32_768  # of the longest haystack
    lengths: tuple[
        int, ...
    ] = ()  # where reading stops to ask, ascending to `tokens`; its quarter, half and whole when empty
    depths: int = 10
    facts_per_kind: int = 10
    kinds: tuple[Kind, ...] = DEFAULT_KINDS
    # Plant further facts where a depth of a shorter length has none; otherwise that cell stays empty.
    fill_depths: bool = True
    window_at_every_length: bool = True  # or at the longest alone
    gold_tokens: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if self.depths < 1 or self.facts_per_kind < 1 or self.tokens < 1 or not self.kinds:
            raise ValueError("tokens, depths, facts_per_kind and kinds must not be empty")
        if self.lengths and (list(self.lengths) != sorted(set(self.lengths)) or self.lengths[-1] != self.tokens):
            raise ValueError(f"lengths {self.lengths} must ascend to tokens={self.tokens}")

    def checkpoints(self) -> tuple[int, ...]:
        return self.lengths or tuple(sorted({max(1, self.tokens // share) for share in (4, 2, 1)}))


@dataclasses.dataclass(frozen=True)
class Asked:
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
    seconds: float  # of the memory's answer


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
class NiahReport:
    accuracy: float
    oracle_accuracy: float
    window_accuracy: float | None
    recall_at_k: float
    intervals: dict[str, tuple[float, float]]  # 95 % Wilson, of the four rates above
    by_length: dict[str, Share]
    by_depth: dict[str, Share]  # at every length; keyed by the middle of the bin, 0 to 1
    by_kind: dict[str, Share]
    config: dict[str, Any]
    model: str
    tokens: int
    questions: tuple[Asked, ...]
    seconds: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)

    @property
    def longest(self) -> int:
        return max(asked.length for asked in self.questions)

    def at_longest(self) -> tuple[Asked, ...]:
        return tuple(asked for asked in self.questions if asked.length == self.longest)


def run_niah(
    model: str | MemoryModel,
    config: NiahConfig | None = None,
    *,
    corpus: pathlib.Path | None = None,
    memory: pathlib.Path | None = None,
    log: Log | None = None,
    progress: bool = False,
) -> NiahReport:
    """Plant, read and ask. `model` is a name or path to load, or a MemoryModel to go on with.

    The books are those shipped, and those of `corpus` where these are too short: ValueError when all together are.
    """
    config = config if config is not None else NiahConfig()
    books = gather_books(int(config.tokens * CHARACTERS_PER_TOKEN), corpus)
    if not isinstance(model, str):
        return ask_haystack(model, plan_haystack(books, model.tokenizer, config), config, log=log, progress=progress)
    from everlong.model import MemoryModel

    with MemoryModel.from_pretrained(model, memory=memory) as mm:
        haystack = plan_haystack(books, mm.tokenizer, config)
        return ask_haystack(mm, haystack, config, name=model, log=log, progress=progress)


def plan_haystack(books: Sequence[Any], tokenizer: Any, config: NiahConfig) -> Haystack:
    """Facts at every depth of the longest haystack, the kinds taking turns; more of them as `fill_depths` says."""
    base = config.facts_per_kind * len(config.kinds)
    positions = [int((index + 0.5) / base * config.tokens) for index in range(base)]
    turns = [config.kinds[index % len(config.kinds)] for index in range(base)]
    if config.fill_depths:
        for length in config.checkpoints():
            for empty in range(config.depths):
                first, last = (int(edge * length / config.depths) for edge in (empty, empty + 1))
                if not any(first <= position < last for position in positions):
                    positions.append((first + last) // 2)
                    turns.append(config.kinds[len(turns) % len(config.kinds)])
    stock: dict[Kind, list[Fact]] = {kind: [] for kind in config.kinds}
    for fact in make_facts(config.kinds, max(turns.count(kind) for kind in config.kinds), config.seed):
        stock[fact.kind].append(fact)
    facts = [stock[kind].pop(0) for kind in turns]
    return build_haystack(books, tokenizer, config.checkpoints(), facts, positions, config.seed)


def ask_haystack(
    mm: MemoryModel,
    haystack: Haystack,
    config: NiahConfig,
    *,
    name: str = "",
    log: Log | None = None,
    progress: bool = False,
) -> NiahReport:
    """Read the parts in turn and ask at every checkpoint. Nothing asked or answered enters the memory."""
    say = log if log is not None else _silent
    started = time.monotonic()
    read_seconds = 0.0
    begins: list[int] = []  # of the parts, in tokens of the stream
    oracle: dict[str, str] = {}
    asked: list[Asked] = []
    for number, parts in enumerate(haystack.checkpoints):
        for part in haystack.parts[len(begins) : parts]:
            begins.append(mm.stream_tokens)
            report = mm.read(part.text, source=part.source, progress=progress)
            read_seconds += report.seconds
            speed = report.tokens / max(report.seconds, 1e-9)
            say(f"read {part.source}: {report.tokens:,} tokens, {speed:,.0f} a second")
        length = haystack.parts[parts - 1].end
        last = number + 1 == len(haystack.checkpoints)
        needles = [needle for needle in haystack.needles if needle.part < parts]
        chosen = needles if last else _one_a_depth(needles, length, config.depths)
        say(f"asking {len(chosen)} questions at {length:,} tokens")
        for needle in chosen:
            part = haystack.parts[needle.part]
            if needle.fact.question not in oracle:
                oracle[needle.fact.question] = answer_from_passage(
                    mm.model,
                    mm.tokenizer,
                    haystack.gold_passage(needle, config.gold_tokens),
                    needle.fact.question,
                    needle.fact.max_new_tokens,
                )
            with_window = last or config.window_at_every_length
            asked.append(
                _ask(
                    mm,
                    needle,
                    shift=begins[needle.part] - part.begin,
                    length=length,
                    depths=config.depths,
                    oracle_reply=oracle[needle.fact.question],
                    with_window=with_window,
                )
            )
    seconds = {"total": time.monotonic() - started, "read": read_seconds}
    return summarise(asked, config, name or str(getattr(mm.model, "name_or_path", "")), haystack.tokens, seconds)


def _silent(line: str) -> None:
    del line


def _one_a_depth(needles: Iterable[Needle], length: int, depths: int) -> list[Needle]:
    """The needle nearest to the middle of every depth bin that has one."""
    best: dict[int, tuple[float, Needle]] = {}
    for needle in needles:
        place = needle.depth(length) * depths
        number = min(int(place), depths - 1)
        distance = abs(place - number - 0.5)
        if number not in best or distance < best[number][0]:
            best[number] = (distance, needle)
    return [best[number][1] for number in sorted(best)]


def _ask(
    mm: MemoryModel,
    needle: Needle,
    *,
    shift: int,
    length: int,
    depths: int,
    oracle_reply: str,
    with_window: bool,
) -> Asked:
    fact = needle.fact
    span = (needle.begin + shift, needle.end + shift)
    window_reply = None
    if with_window:
        window_reply = mm.generate(fact.question, max_new_tokens=fact.max_new_tokens, recall=False, remember=False).text
    started = time.monotonic()
    answer = mm.generate(fact.question, max_new_tokens=fact.max_new_tokens, remember=False)
    seconds = time.monotonic() - started
    groups = tuple((recall.span[0], recall.span[1]) for recall in answer.recalled)
    holding = [rank for rank, (first, last) in enumerate(groups, 1) if first <= span[0] and span[1] <= last]
    depth = needle.depth(length)
    return Asked(
        kind=fact.kind,
        key=fact.key,
        question=fact.question,
        answer=fact.answer,
        length=length,
        depth=depth,
        depth_bin=min(int(depth * depths), depths - 1),
        span=span,
        reply=answer.text,
        right=fact.accept(answer.text),
        recalled_rank=holding[0] if holding else None,
        groups=groups,
        oracle_reply=oracle_reply,
        oracle_right=fact.accept(oracle_reply),
        window_reply=window_reply,
        window_right=None if window_reply is None else fact.accept(window_reply),
        seconds=seconds,
    )


def summarise(
    asked: Sequence[Asked], config: NiahConfig, model: str, tokens: int, seconds: dict[str, float]
) -> NiahReport:
    """The report of some questions. Raises ValueError when there is none."""
    if not asked:
        raise ValueError("no question was asked")
    overall = _share(asked)
    window = [one.window_right for one in asked if one.window_right is not None]
    outcomes = {
        "accuracy": [one.right for one in asked],
        "oracle_accuracy": [one.oracle_right for one in asked],
        "window_accuracy": window,
        "recall_at_k": [one.recalled_rank is not None for one in asked],
    }
    rates = {key: rate(values) for key, values in outcomes.items() if values}
    return NiahReport(
        accuracy=overall.accuracy,
        oracle_accuracy=overall.oracle_accuracy,
        window_accuracy=overall.window_accuracy,
        recall_at_k=overall.recall_at_k,
        intervals={key: (value.low, value.high) for key, value in rates.items()},
        by_length=_shares(asked, lambda one: one.length, str),
        by_depth=_shares(asked, lambda one: one.depth_bin, lambda number: f"{(number + 0.5) / config.depths:.3g}"),
        by_kind=_shares(asked, lambda one: config.kinds.index(one.kind), lambda number: config.kinds[number]),
        config=dataclasses.asdict(config),
        model=model,
        tokens=tokens,
        questions=tuple(asked),
        seconds=seconds,
    )


def _shares(asked: Sequence[Asked], group: Callable[[Asked], int], label: Callable[[int], str]) -> dict[str, Share]:
    return {
        label(value): _share([one for one in asked if group(one) == value]) for value in sorted(set(map(group, asked)))
    }


def _share(asked: Sequence[Asked]) -> Share:
    right = rate(one.right for one in asked)
    window = [one.window_right for one in asked if one.window_right is not None]
    return Share(
        n=right.n,
        accuracy=right.rate,
        low=right.low,
        high=right.high,
        oracle_accuracy=rate(one.oracle_right for one in asked).rate,
        window_accuracy=rate(window).rate if window else None,
        recall_at_k=rate(one.recalled_rank is not None for one in asked).rate,
    )


def print_niah(report: NiahReport, console: Console) -> None:
    """Tables by kind and by length."""
    for title, shares in (("kind of fact", report.by_kind), ("haystack, tokens", report.by_length)):
        table = Table(title=None)
        table.add_column(title)
        for heading in ("asked", "gold text alone", "window alone", "everlong", "95 %", "group recalled"):
            table.add_column(heading, justify="right")
        for label, share in shares.items():
            table.add_row(
                f"{int(label):,}" if label.isdigit() else label,
                str(share.n),
                _percent(share.oracle_accuracy),
                _percent(share.window_accuracy),
                _percent(share.accuracy),
                f"{share.low:.0%} - {share.high:.0%}",
                _percent(share.recall_at_k),
            )
        console.print(table)
    console.print(
        f"{report.model}: {report.tokens:,} tokens read in {report.seconds['read']:.0f} s, "
        f"{len(report.questions)} questions, {report.seconds['total']:.0f} s in all"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
