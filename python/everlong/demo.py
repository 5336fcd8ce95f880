"""The demo: a real model reads books that it cannot hold, answers from them, and says where it found the answers."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import platform
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from everlong.data import CHARACTERS_PER_TOKEN, Book, gather_books
from everlong.eval.facts import Fact, make_facts
from everlong.eval.gold import answer_from_passage
from everlong.eval.heatmap import draw_heat_map
from everlong.eval.niah import Asked, NiahConfig, NiahReport, ask_haystack, plan_haystack
from everlong.models import DEFAULT_MODEL, load

if TYPE_CHECKING:
    from everlong.model import MemoryModel

FEWEST_TOKENS = 100_000
FREE_QUESTION = "What did Buck not read?"  # of the book that stands first in the haystack, however short

_TRIAL_TOKENS = 3_072  # fill the frame before the clock runs
_TIMED_TOKENS = 2_048
_CALIBRATION_SECONDS = 20.0
_REST_SECONDS = 15.0  # picture, free question, closing the memory


@dataclasses.dataclass(frozen=True)
class Pace:
    """What this machine does, measured before the haystack is built."""

    tokens_per_second: float
    seconds_per_question: float  # with the memory, the window alone and the gold text alone, together

    def tokens_within(self, seconds: float, questions: int) -> int:
        """How many tokens can be read beside so many questions."""
        left = seconds - questions * self.seconds_per_question - _CALIBRATION_SECONDS - _REST_SECONDS
        return max(0, int(left * self.tokens_per_second))


def run_demo(
    tokens: int = 250_000,
    minutes: float = 8.0,
    memory: pathlib.Path | None = None,
    out: pathlib.Path = pathlib.Path("runs/demo"),
    corpus: pathlib.Path | None = None,
    model: str = DEFAULT_MODEL,
    console: Console | None = None,
) -> NiahReport:
    """Read, ask, show; write `heatmap.png`, `report.json` and the memory folder (`memory`, or `out`/books.everlong).

    The haystack is cut to what `minutes` allow on this machine, though never under 100,000 tokens. A memory that an
    earlier demo left there is replaced. Raises ValueError when the books are too few for `tokens`, with what is needed.
    """
    from everlong.model import MemoryModel

    started = time.monotonic()
    console = console if console is not None else Console()
    out = pathlib.Path(out)
    folder = pathlib.Path(memory) if memory is not None else out / "books.everlong"
    books = gather_books(int(tokens * CHARACTERS_PER_TOKEN), corpus)
    console.print(f"everlong demo on {cpu_name()}, {os.cpu_count()} cores")
    network, tokenizer = load(model)
    console.print(f"loaded {model} in {time.monotonic() - started:.0f} s, {str(network.dtype).removeprefix('torch.')}")

    config = NiahConfig(tokens=tokens, facts_at_every_length=False, window_at_every_length=False)
    pace = measure_pace(network, tokenizer, books, config)
    questions = config.facts_per_kind * len(config.kinds) + config.depths
    allowed = pace.tokens_within(minutes * 60 - (time.monotonic() - started), questions)
    console.print(
        f"this machine reads {pace.tokens_per_second:,.0f} tokens a second and needs "
        f"{pace.seconds_per_question:.1f} s for a question asked three ways"
    )
    if allowed < tokens:
        shorter = min(tokens, max(FEWEST_TOKENS, allowed // 1_000 * 1_000))
        if shorter < tokens:
            console.print(f"{minutes:g} minutes do not allow {tokens:,} tokens: the haystack is cut to {shorter:,}")
        if allowed < shorter:
            console.print(f"it takes longer than {minutes:g} minutes: fewer than {shorter:,} tokens would prove little")
        config = dataclasses.replace(config, tokens=shorter)

    _clear(folder)
    out.mkdir(parents=True, exist_ok=True)
    haystack = plan_haystack(books, tokenizer, config)
    with MemoryModel(network, tokenizer, folder) as mm:
        frame = mm.config.frame_tokens
        console.print(
            f"reading {haystack.tokens:,} tokens of books with a frame of {frame:,}; "
            f"{len(haystack.needles)} facts are planted in them"
        )
        report = ask_haystack(mm, haystack, config, name=model, log=console.print, progress=sys.stderr.isatty())
        picture = draw_heat_map(report.to_dict(), out / "heatmap.png")
        (out / "report.json").write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
        console.print(answer_table(report))
        console.print(verdict(report))
        show_free_question(mm, FREE_QUESTION, console)
    seconds = time.monotonic() - started
    console.print(
        f"{report.seconds['read']:.0f} s reading, {seconds:.0f} s in all; memory {folder}, picture {picture}, "
        f"every answer in {out / 'report.json'}"
    )
    console.print(f'ask it more: everlong ask --memory {folder} "your question"', soft_wrap=True)
    return report


def measure_pace(network: Any, tokenizer: Any, books: list[Book], config: NiahConfig) -> Pace:
    """Read a few thousand tokens into a memory in RAM and ask one question all three ways."""
    from everlong.model import MemoryModel

    ids = tokenizer(books[0].text[: 8 * (_TRIAL_TOKENS + _TIMED_TOKENS)], add_special_tokens=False)["input_ids"]
    fact = make_facts(("pass-key",), 1, seed=config.seed + 1)[0]
    with MemoryModel(network, tokenizer, None) as mm:
        mm.read(tokenizer.decode(ids[:_TRIAL_TOKENS]))
        timed = mm.read(tokenizer.decode(ids[_TRIAL_TOKENS : _TRIAL_TOKENS + _TIMED_TOKENS]))
        passage = tokenizer.decode(ids[: config.gold_tokens]) + "\n\n" + fact.statement
        seconds = _seconds_asked(mm, fact, passage)
    return Pace(timed.tokens / max(timed.seconds, 1e-9), seconds)


def _seconds_asked(mm: MemoryModel, fact: Fact, passage: str) -> float:
    started = time.monotonic()
    answer_from_passage(mm.model, mm.tokenizer, passage, fact.question, fact.max_new_tokens)
    for recall in (False, True):
        mm.generate(fact.question, max_new_tokens=fact.max_new_tokens, recall=recall, remember=False)
    return time.monotonic() - started


def _clear(folder: pathlib.Path) -> None:
    """Remove a memory of an earlier demo; refuse to remove anything else."""
    if not folder.exists():
        return
    if (folder / "manifest.json").exists():
        shutil.rmtree(folder)
    elif not folder.is_dir() or any(folder.iterdir()):
        raise FileExistsError(f"{folder} is there and is no memory: name another with --out")


def answer_table(report: NiahReport) -> Table:
    """Right answers at the full length: kind by kind, the three ways of asking side by side."""
    asked = report.at_longest()
    table = Table(title=f"facts answered right, {report.longest:,} tokens read")
    table.add_column("kind of fact")
    for heading in ("gold text alone", "window alone", "everlong", "group recalled"):
        table.add_column(heading, justify="right")
    for kind in report.by_kind:
        table.add_row(kind, *_counts([one for one in asked if one.kind == kind]))
    table.add_section()
    table.add_row("all", *_counts(asked))
    return table


def _counts(asked: list[Asked] | tuple[Asked, ...]) -> list[str]:
    n = len(asked)
    columns = (
        [one.oracle_right for one in asked],
        [bool(one.window_right) for one in asked],
        [one.right for one in asked],
        [one.recalled_rank is not None for one in asked],
    )
    return [f"{sum(column)} / {n}" for column in columns]


def verdict(report: NiahReport) -> str:
    """One sentence: everlong against the model's own rate."""
    asked = report.at_longest()
    own, ours = sum(one.oracle_right for one in asked), sum(one.right for one in asked)
    ratio = f"{ours / own:.0%} of the model's own rate on the gold text alone" if own else "the model knows none itself"
    return f"everlong: {ours} of {len(asked)} right, {ratio}"


def show_free_question(mm: MemoryModel, question: str, console: Console) -> None:
    """Answer a question about the books, and cite what came back."""
    answer = mm.generate(question, max_new_tokens=48, remember=False)
    console.print(f"\nQ: {question}\nA: {' '.join(answer.text.split())}", markup=False)
    for recall in answer.recalled:
        line = " ".join(recall.passage.split())[:80]
        console.print(
            f"  {recall.source}, tokens {recall.span[0]:,}-{recall.span[1]:,}, score {recall.score:.3g}: {line}...",
            markup=False,
            soft_wrap=True,
        )


def cpu_name() -> str:
    """The processor as the system names it."""
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
