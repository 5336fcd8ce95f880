"""The demo: a real model reads books that it cannot hold, answers from them, and cites what it found."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import pathlib
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from everlong.data import Book
from everlong.frame.capacity import check_capacity
from everlong.generation.eval_decoding import AS_MEASURED
from everlong.memory import Memory
from everlong.models import DEFAULT_MODEL, dtype_name, load
from everlong.models.hardware import processor
from everlong.models.profiles import profiles_in
from everlong.pictures import require_matplotlib
from everlong.text.terminal import escaping_console
from everlong_lab.corpora.facts import Fact, make_facts
from everlong_lab.corpora.haystack import Haystack
from everlong_lab.data.books import CHARACTERS_PER_TOKEN, TooFewTokensError, all_books, make_of_enough
from everlong_lab.eval.gold import answer_from_passage
from everlong_lab.eval.log import Log
from everlong_lab.eval.niah import NiahAnswer, NiahConfig, NiahReport, ask_haystack, plan_haystack
from everlong_lab.pictures.heatmap import draw_heat_map

if TYPE_CHECKING:
    from everlong.generation.memory_model import MemoryModel

TOKENS, MINUTES = 250_000, 6.0
# The run is never cut below this, however slow the machine: less would prove little.
FEWEST_TOKENS = 100_000
FEWEST_FACTS = 5  # of a kind
FREE_QUESTION = "What did Buck not read?"  # about the book that stands first in the haystack, however short

_TRIAL_TOKENS = 1_536  # fill the frame's rolling zone before the clock runs: from there on each chunk costs the same
_TIMED_TOKENS = 1_024
CALIBRATION_SECONDS = 20.0
REST_SECONDS = 15.0  # picture, free question, closing the memory
# Factors on what is slower than in the trial (measured twice): reading beside the disk, and a question to a memory that
# has something to bring back.
READING_LATER, ASKING_LATER = 1.1, 1.35


@dataclasses.dataclass(frozen=True)
class Pace:
    """The speed of this machine, measured before the haystack is built."""

    tokens_per_second: float
    seconds_per_question: float  # with the memory, the window alone and the gold text alone, together
    seconds_with_memory: float  # part of the former

    def tokens_within(self, seconds: float, config: NiahConfig) -> int:
        """Return how many tokens can be read beside the questions of `config`."""
        facts = config.facts_per_kind * len(config.kinds)
        *earlier, whole = config.checkpoints()
        asked_before = sum(min(config.depths, facts * length / whole) for length in earlier)
        asking = ASKING_LATER * (facts * self.seconds_per_question + asked_before * self.seconds_with_memory)
        reading = seconds - asking - CALIBRATION_SECONDS - REST_SECONDS
        return max(0, int(reading * self.tokens_per_second / READING_LATER))

    def fitted(self, config: NiahConfig, seconds: float) -> NiahConfig:
        """Return `config`, cut to what `seconds` allow: first fewer tokens, then fewer facts, but no less than the
        limits.
        """
        fewest = min(FEWEST_FACTS, config.facts_per_kind)
        for facts in range(config.facts_per_kind, fewest - 1, -1):
            config = dataclasses.replace(config, facts_per_kind=facts)
            if self.tokens_within(seconds, config) >= FEWEST_TOKENS:
                break
        allowed = max(FEWEST_TOKENS, self.tokens_within(seconds, config) // 1_000 * 1_000)
        return dataclasses.replace(config, tokens=min(config.tokens, allowed))


@profiles_in(None)
def run_demo(
    tokens: int | None = None,
    minutes: float | None = None,
    memory: pathlib.Path | None = None,
    out: pathlib.Path = pathlib.Path("runs/demo"),
    corpus: pathlib.Path | None = None,
    model: str = DEFAULT_MODEL,
    console: Console | None = None,
    **load_arguments: Any,
) -> NiahReport:
    """Read, ask, show; write `heatmap.png`, `report.json` and the memory folder (`memory`, or `out`/books.everlong).

    By default it reads 250,000 tokens and asks 30 facts. It cuts both to what six minutes allow on this machine, but
    never below 100,000 and 15. Named `tokens` are read however long it takes, unless `minutes` are named, too. Where
    the books are too few they are read again. A memory that an earlier demo left there is replaced. `load_arguments`
    are those of `everlong.models.load`. Raises CapacityError where disk or RAM are too small.
    """
    from everlong.generation.memory_model import MemoryModel

    require_matplotlib()
    started = time.monotonic()
    console = console if console is not None else escaping_console()
    out = pathlib.Path(out).expanduser()
    folder = pathlib.Path(memory).expanduser() if memory is not None else out / "books.everlong"
    if minutes is None and tokens is None:
        minutes = MINUTES
    tokens = tokens if tokens is not None else TOKENS
    books = all_books(corpus, int(tokens * CHARACTERS_PER_TOKEN))
    say: Log = functools.partial(console.print, markup=False, soft_wrap=True)  # a terminal wraps by itself
    say(f"everlong demo on {processor()}, {os.cpu_count()} cores")
    network, tokenizer = load(model, **load_arguments)
    say(f"loaded {model} in {time.monotonic() - started:.0f} s, {dtype_name(network.dtype)}")

    config = NiahConfig(tokens=tokens, facts_at_every_length=False, window_at_every_length=False)
    pace = measure_pace(network, tokenizer, books, config)
    say(
        f"this machine reads {pace.tokens_per_second:,.0f} tokens a second and needs "
        f"{pace.seconds_per_question:.1f} s for a question asked three ways"
    )
    if minutes is not None:
        whole, left = config, minutes * 60 - (time.monotonic() - started)
        config = pace.fitted(whole, left)
        kinds = len(config.kinds)
        if config != whole:
            say(
                f"{minutes:g} minutes do not allow {tokens:,} tokens and {whole.facts_per_kind * kinds} facts: "
                f"cut to {config.tokens:,} and {config.facts_per_kind * kinds}"
            )
        if pace.tokens_within(left, config) < config.tokens:
            say("it takes longer all the same, as less would prove little")
    haystack, readings = haystack_over(books, corpus, tokenizer, config)
    if readings > 1:
        say(f"the books are too few, and are read {readings} times over; --corpus names more")
    check_capacity(network, None, haystack.tokens, folder, "fewer --tokens")
    remove_memory(folder)
    out.mkdir(parents=True, exist_ok=True)
    with MemoryModel(network, tokenizer, folder) as mm:
        frame = mm.config.frame.tokens
        say(
            f"reading {haystack.tokens:,} tokens of books with a frame of {frame:,}; "
            f"{len(haystack.needles)} facts are planted in them"
        )
        report = ask_haystack(mm, haystack, config, name=model, log=say, progress=sys.stderr.isatty())
        (out / "report.json").write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
        picture = draw_heat_map(report.to_dict(), out / "heatmap.png")
        console.print(answer_table(report))
        console.print(verdict(report))
        show_free_question(mm, FREE_QUESTION, console)
    seconds = time.monotonic() - started
    say(
        f"{report.seconds['read']:.0f} s reading, {seconds:.0f} s in all; memory {folder}, picture {picture}, "
        f"every answer in {out / 'report.json'}"
    )
    say(f'ask it more: everlong ask --memory {folder} "your question"')
    return report


def measure_pace(network: Any, tokenizer: Any, books: list[Book], config: NiahConfig) -> Pace:
    """Read a few thousand tokens into a memory in RAM and ask one question all three ways."""
    from everlong.generation.memory_model import MemoryModel

    ids = tokenizer(books[0].text[: 8 * (_TRIAL_TOKENS + _TIMED_TOKENS)], add_special_tokens=False)["input_ids"]
    fact = make_facts(("pass-key",), 1, seed=config.seed + 1)[0]
    with MemoryModel(network, tokenizer, None) as mm:
        mm.read(tokenizer.decode(ids[:_TRIAL_TOKENS]))
        timed = mm.read(tokenizer.decode(ids[_TRIAL_TOKENS : _TRIAL_TOKENS + _TIMED_TOKENS]))
        passage = tokenizer.decode(ids[: config.gold_tokens]) + "\n\n" + fact.statement
        three_ways, with_memory = _seconds_per_question(mm, fact, passage)
    return Pace(timed.tokens / max(timed.seconds, 1e-9), three_ways, with_memory)


def _seconds_per_question(mm: MemoryModel, fact: Fact, passage: str) -> tuple[float, float]:
    """Return the seconds of all three ways, and of the one with the memory."""
    started = time.monotonic()
    answer_from_passage(mm.model, mm.tokenizer, passage, fact.question, fact.max_new_tokens)
    generation = {"max_new_tokens": fact.max_new_tokens, "remember": False, **AS_MEASURED}
    mm.generate(fact.question, recall=False, **generation)
    recalling = time.monotonic()
    mm.generate(fact.question, **generation)
    return time.monotonic() - started, time.monotonic() - recalling


def haystack_over(
    books: list[Book], corpus: pathlib.Path | None, tokenizer: Any, config: NiahConfig
) -> tuple[Haystack, int]:
    """Return the haystack over the books, with more of `corpus` where they are too few, and how often they are read."""
    readings = 1
    while True:
        try:
            enough = _read_over(books, readings)
            return make_of_enough(enough, corpus, lambda some: plan_haystack(some, tokenizer, config)), readings
        except TooFewTokensError as error:
            books = all_books(corpus)  # which all were tried
            readings = max(readings + 1, math.ceil(readings * error.wanted / error.found))


def _read_over(books: list[Book], times: int) -> list[Book]:
    # Each needs a name of its own, as a memory does not read the same source twice.
    again = [Book(f"{book.name}, reading {number}", book.text) for number in range(2, times + 1) for book in books]
    return books + again


def remove_memory(folder: pathlib.Path) -> None:
    """Remove a memory of an earlier demo; refuse to remove anything else."""
    if not folder.exists():
        return
    if Memory.exists(folder):
        shutil.rmtree(folder)
    elif not folder.is_dir() or any(folder.iterdir()):
        raise FileExistsError(f"{folder} is there and is no memory: name another with --out")


def answer_table(report: NiahReport) -> Table:
    """Return right answers at the full length, kind by kind, with the three ways of asking side by side."""
    answers = report.at_longest()
    table = Table(title=f"facts answered right, {report.longest:,} tokens read")
    table.add_column("kind of fact")
    for heading in ("gold text alone", "window alone", "everlong", "group recalled"):
        table.add_column(heading, justify="right")
    for kind in report.by_kind:
        table.add_row(kind, *_counts([one for one in answers if one.kind == kind]))
    table.add_section()
    table.add_row("all", *_counts(answers))
    return table


def _counts(answers: list[NiahAnswer] | tuple[NiahAnswer, ...]) -> list[str]:
    n = len(answers)
    columns = (
        [one.oracle_right for one in answers],
        [bool(one.window_right) for one in answers],
        [one.right for one in answers],
        [one.recalled_rank is not None for one in answers],
    )
    return [f"{sum(column)} / {n}" for column in columns]


def verdict(report: NiahReport) -> str:
    """Return one sentence: everlong against the model's own rate."""
    answers = report.at_longest()
    own, ours = sum(one.oracle_right for one in answers), sum(one.right for one in answers)
    ratio = f"{ours / own:.0%} of the model's own rate on the gold text alone" if own else "the model knows none itself"
    return f"everlong: {ours} of {len(answers)} right, {ratio}"


def show_free_question(mm: MemoryModel, question: str, console: Console) -> None:
    """Answer a question about the books, and cite what came back."""
    answer = mm.generate(question, max_new_tokens=48, remember=False, **AS_MEASURED)
    console.print(f"\nQ: {question}\nA: {' '.join(answer.text.split())}", markup=False)
    for recall in answer.recalled:
        line = " ".join(recall.passage.split())[:80]
        console.print(
            f"  {recall.source}, tokens {recall.span[0]:,}-{recall.span[1]:,}, score {recall.score:.3g}: {line}...",
            markup=False,
            soft_wrap=True,
        )
