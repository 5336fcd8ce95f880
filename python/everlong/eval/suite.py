"""Suites of tasks, asked of everlong and of baselines, over one text that is read once.

The text with everything that is planted in it (`everlong.eval.plan`) is read into one memory, which is forked at every
length; every question is then asked of every baseline at its length and remembered by none. Reading goes on where it
stopped, and so do the questions: every answer is a line of `answers.jsonl` as soon as it is given.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any

from everlong import _core
from everlong.config import MemoryConfig
from everlong.data import CHARACTERS_PER_TOKEN, gather_books
from everlong.errors import CapacityError
from everlong.eval.answers import AnswerFile
from everlong.eval.baselines import Baseline, MissingPackageError, Reading, baseline_of
from everlong.eval.haystack import Part, holds_text
from everlong.eval.meter import metered
from everlong.eval.plan import Asked, Plan, make_plan
from everlong.eval.report import summarise
from everlong.eval.tasks import tasks_of
from everlong.memory import Memory
from everlong.model import MemoryModel

Log = Callable[[str], None]

DEFAULT_BASELINES = (
    "everlong",
    "heads",
    "lexical",
    "mean_pool",
    "recent",
    "random",
    "window",
    "full",
    "bm25",
    "minilm",
    "gold",
)
# A first look: what it can do, what a user would do without it, and chance.
QUICK_BASELINES = ("everlong", "bm25", "random", "gold")
QUICK_LENGTH = 8_192

_READING = "reading.everlong"
# RAM beside model and payload: index and token ids.
_RAM_TOKEN_BYTES = 1_024
_SHARE_OF_DISK = 1.05  # catalog and rounding of records


@dataclasses.dataclass(frozen=True)
class SuiteConfig:
    suites: tuple[str, ...] = ("all",)  # names of suites or of tasks
    lengths: tuple[int, ...] = (131_072,)  # tokens, ascending
    count: int = 4  # questions of each task at each length
    gold_tokens: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.suites or self.count < 1 or not self.lengths or self.lengths[0] < 1_024:
            raise ValueError("a suite needs a task, a question and lengths of 1,024 tokens and more")
        if list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError(f"lengths {list(self.lengths)} are not ascending")

    @classmethod
    def quick(cls, *suites: str) -> SuiteConfig:
        return cls(suites=suites, lengths=(QUICK_LENGTH,), count=1)


def run_suite(
    model: str | tuple[Any, Any],
    config: SuiteConfig | None = None,
    baselines: Sequence[str | Baseline] = DEFAULT_BASELINES,
    *,
    out: pathlib.Path,
    memory_config: MemoryConfig | None = None,
    corpus: pathlib.Path | None = None,
    log: Log | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Read and ask what `out` does not have yet; return the report as plain values (`everlong.eval.report`).

    `model` is a name or path to load, or (model, tokenizer). Of the default baselines those whose package is missing
    are left out and told to `log`; one that was named raises MissingPackageError. Raises ValueError for unknown names
    and too little text, CapacityError for too little disk or RAM, before anything is read.
    """
    from everlong.models import resolve

    config = config if config is not None else SuiteConfig()
    say = log if log is not None else _silent
    named = tuple(baselines) not in (DEFAULT_BASELINES, QUICK_BASELINES)
    tasks = list({task.name: task for name in config.suites for task in tasks_of(name)}.values())
    chosen = [(_spec(baseline), baseline) for baseline in baselines]
    twice = [spec for spec, count in collections.Counter(spec for spec, _ in chosen).items() if count > 1]
    if twice:
        raise ValueError(f"baselines named twice: {', '.join(twice)}")
    rivals = [(spec, baseline_of(which) if isinstance(which, str) else which) for spec, which in chosen]
    books = gather_books(int(config.lengths[-1] * CHARACTERS_PER_TOKEN), corpus)
    name, network, tokenizer = resolve(model)
    plan = make_plan(
        tasks, config.lengths, config.count, books, tokenizer, gold_tokens=config.gold_tokens, seed=config.seed
    )
    settings = {
        "model": name,
        "suites": list(config.suites),
        "lengths": list(config.lengths),
        "count": config.count,
        "gold_tokens": config.gold_tokens,
        "seed": config.seed,
        "memory": None if memory_config is None else memory_config.to_dict(),
    }
    answers = AnswerFile(out / "answers.jsonl", settings)
    check_room(network, memory_config, plan.tokens, out)
    _read(network, tokenizer, memory_config, plan, out, answers, say, progress=progress)
    for length in config.lengths:
        questions = [asked for asked in plan.questions if asked.length == length]
        _ask(network, tokenizer, memory_config, plan, questions, rivals, out, answers, say, named=named)
    return summarise(answers, plan, [spec for spec, _ in rivals], tasks)


def _spec(baseline: str | Baseline) -> str:
    """What a baseline's answers are kept under: its name and what differs from its defaults, as `baseline_of` reads."""
    if isinstance(baseline, str):
        return baseline
    fields = dataclasses.fields(baseline)  # type: ignore[arg-type]  # every baseline is a dataclass
    # A field that does not compare (what it has counted, say) is none of its settings.
    values = {field.name: getattr(baseline, field.name) for field in fields if field.compare}
    defaults = {field.name: field.default for field in fields}
    settings = [f"{name}={value}" for name, value in values.items() if value != defaults[name]]
    return ":".join(filter(None, (baseline.name, ",".join(settings))))


def _silent(line: str) -> None:
    del line


def check_room(model: Any, config: MemoryConfig | None, tokens: int, out: pathlib.Path) -> None:
    """Raise CapacityError, saying what `tokens` tokens would need, when disk or RAM at hand are too small."""
    text = model.config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    codec = (config or MemoryConfig()).codec
    value_bytes = {"fp32": 4, "bf16": 2, "e4m3": 1, "e5m2": 1}[codec]
    disk = int(tokens * text.num_hidden_layers * 2 * heads * size * value_bytes * _SHARE_OF_DISK)
    held = sum(file.stat().st_size for file in out.glob(f"{_READING}/**/*") if file.is_file())
    place = out
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free + held
    if disk > free:
        raise CapacityError(
            f"{tokens:,} tokens of this model need {_told(disk)} of disk as {codec}, "
            f"{place} has {_told(free)}: ask for fewer tokens or name another folder with --out"
        )
    ram, available = tokens * _RAM_TOKEN_BYTES, _core.free_memory_bytes()
    if 0 < available < ram:
        raise CapacityError(
            f"{tokens:,} tokens need {_told(ram)} of RAM for their index, this process may take "
            f"{_told(available)}: ask for fewer tokens"
        )


def _told(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


def _read(
    network: Any,
    tokenizer: Any,
    config: MemoryConfig | None,
    plan: Plan,
    out: pathlib.Path,
    answers: AnswerFile,
    say: Log,
    *,
    progress: bool,
) -> None:
    """Read what the memory in `out` does not have yet; leave a fork of it at every length."""
    there = [length for length in plan.read_at if _fork_of(out, length).exists()]
    if there:  # each begins as the longest does
        _require_same_text(_fork_of(out, there[-1]), plan.texts[: plan.read_at[there[-1]]], tokenizer)
    missing = [length for length in plan.read_at if length not in there]
    if not missing:
        return
    with MemoryModel(network, tokenizer, out / _READING, config) as mm:
        done = 0
        for length, texts in plan.read_at.items():
            for part in plan.texts[done:texts]:
                if mm.stream_tokens >= part.end:
                    continue  # by an earlier run
                report = mm.read(part.text, source=part.source, progress=progress)
                if mm.stream_tokens != part.end:
                    raise ValueError(f"{out / _READING} holds another text: name another folder with --out")
                answers.add(kind="read", tokens=report.tokens, seconds=report.seconds)
                if report.tokens >= 1_000:
                    say(
                        f"read {part.source}: {mm.stream_tokens:,} tokens so far, "
                        f"{report.tokens / max(report.seconds, 1e-9):,.0f} a second"
                    )
            done = texts
            if length in missing:
                fork = _fork_of(out, length)
                half = fork.with_suffix(".begun")
                shutil.rmtree(half, ignore_errors=True)
                mm.memory.fork(half).close()
                half.rename(fork)


def _require_same_text(folder: pathlib.Path, texts: Sequence[Part], tokenizer: Any) -> None:
    """ValueError unless a memory holds these texts: other books in the same folder plant the same questions elsewhere.

    What an earlier everlong planted may be other text, too.
    """
    with Memory.open(folder, read_only=True) as memory:
        tokens = memory.core.stream_end(0)
        if tokens < texts[-1].end or not holds_text(memory.core, tokenizer, texts, tokens):
            raise ValueError(f"{folder} holds another text (books, tasks): name another folder with --out")


def _fork_of(out: pathlib.Path, length: int) -> pathlib.Path:
    return out / f"{length}.everlong"


def _ask(
    network: Any,
    tokenizer: Any,
    config: MemoryConfig | None,
    plan: Plan,
    questions: Sequence[Asked],
    rivals: Sequence[tuple[str, Baseline]],
    out: pathlib.Path,
    answers: AnswerFile,
    say: Log,
    *,
    named: bool,
) -> None:
    """Ask every baseline what it has not answered yet, at one length."""
    length = questions[0].length
    texts = plan.texts[: plan.read_at[length]]
    open_questions: dict[str, list[Asked]] = {}
    for spec, _ in rivals:
        answered = {row["id"] for row in answers.find(kind="answer", baseline=spec)}
        open_questions[spec] = [asked for asked in questions if asked.id not in answered]
    if not any(open_questions.values()):
        return
    with MemoryModel(network, tokenizer, _fork_of(out, length), config) as mm, metered(network) as meter:
        reading = Reading(mm, texts)
        for spec, baseline in rivals:
            if not open_questions[spec]:
                continue
            say(f"{length:,} tokens, {spec}: {len(open_questions[spec])} questions")
            before, started = meter.prefilled, time.monotonic()
            try:
                baseline.prepare(reading)
            except MissingPackageError as error:
                if named:
                    raise
                say(f"{spec} is left out: {error}")
                continue
            if not answers.find(kind="prepared", baseline=spec, length=length):
                answers.add(
                    kind="prepared",
                    baseline=spec,
                    length=length,
                    seconds=time.monotonic() - started,
                    prefilled=meter.prefilled - before,
                    bytes=baseline.held_bytes(),
                )
            for asked in open_questions[spec]:
                before, started = meter.prefilled, time.monotonic()
                reply = baseline.answer(asked)
                answers.add(
                    kind="answer",
                    baseline=spec,
                    id=asked.id,
                    reply=reply.text,
                    seconds=time.monotonic() - started,
                    prefilled=meter.prefilled - before,
                    context=sum(end - begin for begin, end in reply.recalled),
                    covered=asked.covered(reply.recalled),
                )
            baseline.release()
