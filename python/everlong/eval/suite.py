"""Suites of tasks, asked of everlong and of baselines, over one text that is read once.

The text with everything that is planted in it (`everlong.eval.plan`) is read into one memory, which is forked at every
length; every question is then asked of every baseline at its length and remembered by none. Reading goes on where it
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
from everlong.corpora.haystack import GOLD_TOKENS, Part
from everlong.corpora.tasks import tasks_of
from everlong.data import CHARACTERS_PER_TOKEN, Book, gather_books, make_of_enough
from everlong.errors import UnsupportedModelError
from everlong.eval.answers import AnswerFile, deciding, digest, dtype_of
from everlong.eval.baselines import Baseline, CannotAskError, Reading, baseline_of, spec_of
from everlong.eval.forks import PROFILES, READING, fork_of, keep_fork
from everlong.eval.holds import holds_text
from everlong.eval.log import Log, silent
from everlong.eval.meter import metered
from everlong.eval.plan import Asked, Plan, make_plan
from everlong.eval.report import summarise
from everlong.frame.room import check_room
from everlong.frame.serve import default_config
from everlong.generation.memory_model import MemoryModel
from everlong.memory import Memory
from everlong.models.profiles import profiles_in
from everlong.models.provenance import made_with
from everlong.text.prompt import with_template_variables

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

FILE = "answers.jsonl"  # in the folder of a run
# Of a Question; what is planted is compared as text.
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
    log: Log | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Read and ask what `out` does not have yet; return the report as plain values (`everlong.eval.report`).

    `model` is a name or path to load, or (model, tokenizer). Of the default baselines those whose package is missing
    or which have no room in the model's window are left out and told to `log`; one that was named raises
    MissingPackageError or ValueError. Raises ValueError for unknown names and too little text, CapacityError for too
    little disk or RAM, before anything is read.
    """
    from everlong.models import dtype_name, resolve

    config = config if config is not None else SuiteConfig()
    say = log if log is not None else silent
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
    rivals = _suited(rivals, network, tokenizer, memory_config, say, named=named)

    def plan_of(books: list[Book]) -> Plan:
        gold, seed = config.gold_tokens, config.seed
        return make_plan(tasks, config.lengths, config.count, books, tokenizer, gold_tokens=gold, seed=seed)

    plan = make_of_enough(books, corpus, plan_of)
    settings = {
        "model": name,
        "suites": list(config.suites),
        "lengths": list(config.lengths),
        "count": config.count,
        "gold_tokens": config.gold_tokens,
        "seed": config.seed,
        "chat_template_kwargs": dict(config.chat_template_kwargs),
        "memory": None if memory_config is None else deciding(memory_config.to_dict()),
        "dtype": dtype_name(network.dtype),
        "questions": _digest(plan.questions),
    }
    check_room(network, memory_config, plan.tokens, out / READING)
    answers = AnswerFile(out / FILE, settings, made_with(network))
    with profiles_in(out / PROFILES):
        _read(network, tokenizer, memory_config, plan, out, answers, say, progress=progress)
        for length in config.lengths:
            questions = [asked for asked in plan.questions if asked.length == length]
            _ask(network, tokenizer, memory_config, plan, questions, rivals, out, answers, say, named=named)
    return summarise(answers, plan, [spec for spec, _ in rivals], tasks)


def _suited(
    rivals: Sequence[tuple[str, Baseline]],
    network: Any,
    tokenizer: Any,
    config: MemoryConfig | None,
    say: Log,
    *,
    named: bool,
) -> list[tuple[str, Baseline]]:
    """Those that go with this model and memory; ValueError for another one that was named."""
    config = config if config is not None else default_config(network)
    suited = []
    for spec, baseline in rivals:
        try:
            baseline.check(network, tokenizer, config)
        except (ValueError, UnsupportedModelError) as error:
            if named:
                raise
            say(f"{spec} is left out: {error}")
        else:
            suited.append((spec, baseline))
    return suited


def _digest(questions: Sequence[Asked]) -> str:
    """Of what decides a reply and its score: other questions under the same names are another run."""
    return digest([[asked.id, *(getattr(asked.question, name) for name in _DECIDING_A_REPLY)] for asked in questions])


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
    there = [length for length in plan.read_at if fork_of(out, length).exists()]
    if there:  # each begins as the longest does
        _require_same_text(fork_of(out, there[-1]), plan.texts[: plan.read_at[there[-1]]], tokenizer)
    missing = [length for length in plan.read_at if length not in there]
    if not missing:
        return
    with MemoryModel(network, tokenizer, out / READING, config) as mm:
        if mm.stream_tokens > plan.tokens or not holds_text(mm.memory.core, tokenizer, plan.texts, mm.stream_tokens):
            raise ValueError(f"{out / READING} holds another text (books, tasks): name another folder with --out")
        done = 0
        for length, texts in plan.read_at.items():
            for part in plan.texts[done:texts]:
                if mm.stream_tokens >= part.end:
                    continue  # by an earlier run
                begin, started = mm.stream_tokens, time.perf_counter()
                try:
                    report = mm.read(part.text, source=part.source, progress=progress)
                finally:  # what was read before an interruption took its time, too
                    seconds = time.perf_counter() - started
                    answers.add(kind="read", tokens=mm.stream_tokens - begin, seconds=seconds)
                if mm.stream_tokens != part.end:
                    raise ValueError(f"{out / READING} holds another text: name another folder with --out")
                if report.tokens >= 1_000:
                    say(
                        f"read {part.source}: {mm.stream_tokens:,} tokens so far, "
                        f"{report.tokens / max(report.seconds, 1e-9):,.0f} a second"
                    )
            done = texts
            if length in missing:
                keep_fork(mm.memory, fork_of(out, length))


def _require_same_text(folder: pathlib.Path, texts: Sequence[Part], tokenizer: Any) -> None:
    """ValueError unless a memory holds these texts: other books in the same folder plant the same questions elsewhere.

    What an earlier everlong planted may be other text, too.
    """
    with Memory.open(folder, read_only=True) as memory:
        tokens = memory.core.stream_end(0)
        if tokens < texts[-1].end or not holds_text(memory.core, tokenizer, texts, tokens):
            raise ValueError(f"{folder} holds another text (books, tasks): name another folder with --out")


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
    with MemoryModel(network, tokenizer, fork_of(out, length), config) as mm, metered(network) as meter:
        reading = Reading(mm, texts)
        for spec, baseline in rivals:
            if not open_questions[spec]:
                continue
            say(f"{length:,} tokens, {spec}: {len(open_questions[spec])} questions")
            before, started = meter.prefilled, time.monotonic()
            try:
                baseline.prepare(reading)
            except CannotAskError as error:
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
