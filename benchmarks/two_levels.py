"""What the heads' second level leaves out: the same questions by one level and by two, over an existing memory.

    python benchmarks/two_levels.py MEMORY [--questions 120] [--json]

MEMORY is a folder that `everlong read` or `everlong eval --keep` made. It is asked in a branch and stays as it is. The
questions are those of drawn facts of five kinds and the 48 paraphrases. The memory need not have an answer, as both
ways rank its pages. `kept` is the share of the pages in the exact 16 best groups (a page, or neighbouring pages) that
the first level leaves to be scored. `first 4` is the share of those in the best four that two levels have there too.
Times are medians.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import everlong
from everlong.models import DEFAULT_MODEL, load
from everlong.models.attach import AttachedModel
from everlong.models.hardware import processor
from everlong.retrieval.question_states import head_queries, tap_question
from everlong.text.prompt import build_prompt
from everlong_lab.corpora import words
from everlong_lab.corpora.facts import PARAPHRASES, Kind, make_facts

BEST, FIRST = 16, 4
KINDS: tuple[Kind, ...] = ("pass-key", "uuid", "name", "best-thing", "quote")
MOST_OF_A_KIND = len(words.CITIES[::2])  # cities with a best thing to ask for; the other kinds have thousands of keys
NEVER = 2**31 - 1


def questions_of(count: int) -> list[str]:
    paraphrased = [fact.question for fact in PARAPHRASES]
    each = min(max(1, (count - len(paraphrased)) // len(KINDS)), MOST_OF_A_KIND)
    return [fact.question for fact in make_facts(KINDS, each, seed=5)] + paraphrased


@dataclasses.dataclass(frozen=True)
class Ranked:
    """Pages by their first tokens: the best, the first, and all that have a mass."""

    best: set[int]
    first: set[int]
    scored: set[int]
    ms: float  # of the search for the best


def rank(core: Any, pages: int, ids: Any, queries: Any) -> Ranked:
    def search(k: int) -> set[int]:
        ranking = core.search.rankings(k, token_ids=ids, head_queries=queries, kinds=["heads"])[0]
        return {page.begin for page in ranking.pages}

    search(BEST)
    started = time.perf_counter()
    best = search(BEST)
    ms = 1e3 * (time.perf_counter() - started)
    return Ranked(best, search(FIRST), search(pages), ms)


@dataclasses.dataclass(frozen=True)
class Asked:
    """A memory, and questions as its heads ask them."""

    core: Any
    heads: list[tuple[int, int, int]]
    pages: int
    questions: list[tuple[Any, Any]]  # token ids [T], queries [T, heads, D]


@contextlib.contextmanager
def asked_memory(folder: pathlib.Path, count: int) -> Iterator[Asked]:
    """Open a branch of the memory in `folder`, with about `count` questions to it."""
    model, tokenizer = load(DEFAULT_MODEL)
    with tempfile.TemporaryDirectory() as temporary:
        branch = pathlib.Path(temporary) / "branch"
        with everlong.Memory.open(folder, read_only=True) as memory:
            memory.fork(branch).close()
        with everlong.MemoryModel(model, tokenizer, branch) as mm:
            profile, served = mm.profile or mm.calibrate(), mm.frame.served
            assert isinstance(served, AttachedModel)
            core = mm.memory.core
            layers = sorted({layer for layer, _, _ in profile.heads})
            asked = []
            for question in questions_of(count):
                prompt = build_prompt(tokenizer, question)
                queries = tap_question(mm.frame, prompt.ids, prompt.question, layers).queries
                ids = prompt.ids[prompt.question].numpy().astype(np.int32)
                asked.append((ids, head_queries(served, queries, profile)))
            yield Asked(core, list(profile.heads), len(core.blocks.pages()), asked)


def parse_options(description: str | None) -> argparse.Namespace:
    """Return the options of a script that asks a memory."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memory", type=pathlib.Path)
    parser.add_argument("--questions", type=int, default=120, help="rough number of questions, or all there are")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure(folder: pathlib.Path, count: int) -> dict[str, Any]:
    with asked_memory(folder, count) as asked:
        ranked = {}
        for levels, coarse_from in (("one", NEVER), ("two", 1)):
            asked.core.index.set_retrieval_heads(asked.heads, coarse_from)
            ranked[levels] = [rank(asked.core, asked.pages, *question) for question in asked.questions]
    both = list(zip(ranked["one"], ranked["two"], strict=True))
    kept = [len(one.best & two.scored) / len(one.best) for one, two in both]
    return {
        "cpu": processor(),
        "pages": asked.pages,
        "questions": len(asked.questions),
        "scored exactly": max(len(two.scored) for _, two in both),
        "kept": statistics.fmean(kept),
        "worst kept": min(kept),
        "first 4": statistics.fmean(len(one.first & two.first) / len(one.first) for one, two in both),
        "ms": {levels: statistics.median(one.ms for one in rows) for levels, rows in ranked.items()},
    }


def main() -> None:
    options = parse_options(__doc__)
    report = measure(options.memory, options.questions)
    if options.json:
        print(json.dumps(report, indent=2))
        return
    print(report["cpu"])
    print(
        f"{report['questions']} questions over {report['pages']:,} pages, {report['scored exactly']:,} of them scored "
        f"exactly:\nof the pages in the exact {BEST} best groups {report['kept']:.2%} kept (worst question "
        f"{report['worst kept']:.0%}); of those in the first {FIRST}, {report['first 4']:.2%} are there too\n"
        f"one level {report['ms']['one']:.1f} ms, two {report['ms']['two']:.1f} ms"
    )


if __name__ == "__main__":
    main()
