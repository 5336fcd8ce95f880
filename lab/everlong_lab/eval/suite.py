"""Suites of tasks, asked of everlong and of baselines, over one text that is read once.

The text with everything planted in it (`everlong_lab.eval.plan`) is read into one memory, which is forked at every
length. Every question is then asked of every baseline at its length; none remembers it. Reading goes on where it
stopped, and so do the questions: every answer is a line of `answers.jsonl` as soon as it is given.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from everlong.config import MemoryConfig
from everlong.data import Book
from everlong.errors import UnsupportedModelError
from everlong.frame.capacity import check_capacity
from everlong.frame.model_setup import default_config
from everlong.generation.memory_model import MemoryModel
from everlong.memory import Memory
from everlong.models.profiles import profiles_in
from everlong.models.provenance import provenance
from everlong.text.prompt import with_template_variables
from everlong_lab.corpora.haystack import GOLD_TOKENS, HaystackPiece
from everlong_lab.corpora.tasks import tasks_of
from everlong_lab.data.books import CHARACTERS_PER_TOKEN, gather_books, make_of_enough
from everlong_lab.eval.answers import AnswerFile, deciding, digest, dtype_of
from everlong_lab.eval.baselines import Baseline, CannotAskError, ReadTexts, baseline_of, spec_of
from everlong_lab.eval.forks import PROFILES, READING, fork_of, store_fork
from everlong_lab.eval.log import Log, silent
from everlong_lab.eval.meter import metered
from everlong_lab.eval.plan import Plan, PlannedRun, make_plan
from everlong_lab.eval.report import summarise
from everlong_lab.eval.resume import holds_text

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
# A first look: what everlong can do, what a user would do without it, and chance.
QUICK_BASELINES = ("everlong", "bm25", "random", "gold")
QUICK_LENGTH = 8_192

FILE = "answers.jsonl"  # in the folder of a run
# Fields of a Question that decide a reply; what is planted is compared as text.
_DECIDING_A_REPLY = ("text", "answers", "candidates", "max_new_tokens", "sources")


@dataclasses.dataclass(frozen=True)
class SuiteConfig:
    suites: tuple[str, ...] = ("all",)  # names of suites or of tasks
    lengths: tuple[int, ...] = (131_072,)  # tokens, ascending
    count: int = 4  # questions of each task at each length
    gold_tokens: int = GOLD_TOKENS
    seed: int = 0
    # Variables of the tokenizer's chat template, in every baseline's prompts.
    chat_template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

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
    log: Log = silent,
    progress: bool = False,
) -> dict[str, Any]:
    """Read and ask what `out` does not have yet; return the report as plain values (`everlong_lab.eval.report`).

    `model` is a name or path to load, or (model, tokenizer). A default baseline is left out, and `log` told, where its
    package is missing or it has no room in the model's window. A named baseline raises MissingPackageError or
    ValueError instead. Raises ValueError for unknown names and too little text, and CapacityError for too little disk
    or RAM, before anything is read.
    """
    from everlong.models import dtype_name, resolve

    config = config if config is not None else SuiteConfig()
    named = tuple(baselines) not in (DEFAULT_BASELINES, QUICK_BASELINES)
    tasks = list({task.name: task for name in config.suites for task in tasks_of(name)}.values())
    chosen = [(one if isinstance(one, str) else spec_of(one), one) for one in baselines]
    twice = [spec for spec, count in collections.Counter(spec for spec, _ in chosen).items() if count > 1]
    if twice:
        raise ValueError(f"baselines named twice: {', '.join(twice)}")
    rivals = [(spec, baseline_of(which) if isinstance(which, str) else which) for spec, which in chosen]
    books = gather_books(int(config.lengths[-1] * CHARACTERS_PER_TOKEN), corpus)
    name, network, tokenizer = resolve(model, dtype_of(out, FILE))
    tokenizer = with_template_variables(tokenizer, config.chat_template_kwargs)
    suited = []
    for spec, baseline in rivals:
        try:
            baseline.check(network, tokenizer, memory_config or default_config(network))
        except (ValueError, UnsupportedModelError) as error:
            if named:
                raise
            log(f"{spec} is left out: {error}")
        else:
            suited.append((spec, baseline))

    def plan_of(books: list[Book]) -> Plan:
        gold, seed = config.gold_tokens, config.seed
        return make_plan(tasks, config.lengths, config.count, books, tokenizer, gold_tokens=gold, seed=seed)

    plan = make_of_enough(books, corpus, plan_of)
    settings = {
        "model": name,
        **dataclasses.asdict(config),
        "memory": None if memory_config is None else deciding(memory_config.to_dict()),
        "dtype": dtype_name(network.dtype),
        "questions": _digest(plan.questions),
    }
    check_capacity(network, memory_config, plan.tokens, out / READING)
    answers = AnswerFile(out / FILE, settings, provenance(network))
    run = _Run(network, tokenizer, memory_config, plan, out, answers, log)
    with profiles_in(out / PROFILES):
        run.read(progress=progress)
        for length in config.lengths:
            run.ask(length, suited, named=named)
    return summarise(answers, plan, [spec for spec, _ in suited], tasks)


def _digest(questions: Sequence[PlannedRun]) -> str:
    """Return a digest of what decides a reply and its score: other questions under the same names are another run."""
    return digest(
        [[question.id, *(getattr(question.question, name) for name in _DECIDING_A_REPLY)] for question in questions]
    )


@dataclasses.dataclass(frozen=True)
class _Run:
    """What is read and asked in a folder."""

    network: Any
    tokenizer: Any
    config: MemoryConfig | None
    plan: Plan
    out: pathlib.Path
    answers: AnswerFile
    say: Log

    def read(self, *, progress: bool) -> None:
        """Read what the memory in `out` does not have yet; leave a fork of it at every length."""
        plan, out, tokenizer = self.plan, self.out, self.tokenizer
        there = [length for length in plan.read_at if fork_of(out, length).exists()]
        if there:  # each begins as the longest does
            _require_same_text(fork_of(out, there[-1]), plan.texts[: plan.read_at[there[-1]]], tokenizer)
        missing = [length for length in plan.read_at if length not in there]
        if not missing:
            return
        with self.memory_in(out / READING) as mm:
            tokens = mm.stream_tokens
            if tokens > plan.tokens or not holds_text(mm.memory.core, tokenizer, plan.texts, tokens):
                raise ValueError(f"{out / READING} holds another text (books, tasks): name another folder with --out")
            done = 0
            for length, texts in plan.read_at.items():
                for part in plan.texts[done:texts]:
                    if mm.stream_tokens >= part.end:
                        continue  # read by an earlier run
                    begin, started = mm.stream_tokens, time.perf_counter()
                    try:
                        report = mm.read(part.text, source=part.source, progress=progress)
                    finally:  # what was read before an interruption took its time, too
                        seconds = time.perf_counter() - started
                        self.answers.add(kind="read", tokens=mm.stream_tokens - begin, seconds=seconds)
                    if mm.stream_tokens != part.end:
                        raise ValueError(f"{out / READING} holds another text: name another folder with --out")
                    if report.tokens >= 1_000:
                        self.say(
                            f"read {part.source}: {mm.stream_tokens:,} tokens so far, "
                            f"{report.tokens / max(report.seconds, 1e-9):,.0f} a second"
                        )
                done = texts
                if length in missing:
                    store_fork(mm.memory, fork_of(out, length))

    def memory_in(self, folder: pathlib.Path) -> MemoryModel:
        mm = MemoryModel(self.network, self.tokenizer, folder, self.config)
        # Every method decodes one token at a time, so that what is computed for a question compares.
        mm.config = mm.config.changed(answer={"draft_tokens": 0})
        return mm

    def ask(self, length: int, rivals: Sequence[tuple[str, Baseline]], *, named: bool) -> None:
        """Ask every baseline what it has not answered yet, at one length."""
        answers = self.answers
        questions = [question for question in self.plan.questions if question.length == length]
        open_questions: dict[str, list[PlannedRun]] = {}
        for spec, _ in rivals:
            answered = {row["id"] for row in answers.find(kind="answer", baseline=spec)}
            open_questions[spec] = [question for question in questions if question.id not in answered]
        if not any(open_questions.values()):
            return
        with self.memory_in(fork_of(self.out, length)) as mm, metered(self.network) as meter:
            reading = ReadTexts(mm, self.plan.texts[: self.plan.read_at[length]])
            for spec, baseline in rivals:
                if not open_questions[spec]:
                    continue
                self.say(f"{length:,} tokens, {spec}: {len(open_questions[spec])} questions")
                before, started = meter.prefilled, time.monotonic()
                try:
                    baseline.prepare(reading)
                except CannotAskError as error:
                    if named:
                        raise
                    self.say(f"{spec} is left out: {error}")
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
                for question in open_questions[spec]:
                    before, started = meter.prefilled, time.monotonic()
                    reply = baseline.answer(question)
                    answers.add(
                        kind="answer",
                        baseline=spec,
                        id=question.id,
                        reply=reply.text,
                        seconds=time.monotonic() - started,
                        prefilled=meter.prefilled - before,
                        context=sum(end - begin for begin, end in reply.recalled),
                        covered=question.covered(reply.recalled),
                    )
                baseline.release()


def _require_same_text(folder: pathlib.Path, texts: Sequence[HaystackPiece], tokenizer: Any) -> None:
    """Raise ValueError unless a memory holds these texts.

    Other books in the same folder, or an earlier release of everlong, plant the same questions elsewhere.
    """
    with Memory.open(folder, read_only=True) as memory:
        tokens = memory.core.blocks.stream_end(0)
        if tokens < texts[-1].end or not holds_text(memory.core, tokenizer, texts, tokens):
            raise ValueError(f"{folder} holds another text (books, tasks): name another folder with --out")
