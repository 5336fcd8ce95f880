"""Asks the questions of published files, each of a memory that has read its text, with recall and without."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from everlong.config import MemoryConfig
from everlong.generation.answer import Answer
from everlong.generation.eval_decoding import AS_MEASURED
from everlong.generation.memory_model import MemoryModel
from everlong.models.provenance import provenance
from everlong_lab.data.books import CHARACTERS_PER_TOKEN
from everlong_lab.eval.answers import AnswerFile, deciding, digest, dtype_of
from everlong_lab.eval.log import Log, silent
from everlong_lab.eval.published.example import Example
from everlong_lab.eval.published.formats import examples_in
from everlong_lab.eval.report import Score

FILE = "answers.jsonl"
# With what comes back, and by the newest text alone.
RIVALS = {"everlong": True, "window": False}


def run_published(
    model: str | tuple[Any, Any],
    data: Path,
    *,
    out: Path,
    limit: int = 0,
    length: int = 32_768,
    memory_config: MemoryConfig | None = None,
    log: Log = silent,
) -> dict[str, Any]:
    """Ask what `out` does not have yet; return the report as plain values.

    `limit`: questions of each task, the first ones; 0 for all. `length`: tokens of a haystack, where a benchmark gives
    its haystacks apart. ValueError for files in no known format, and where `out` holds another run.
    """
    from everlong.models import dtype_name, resolve

    examples = list(_first(examples_in(data, int(length * CHARACTERS_PER_TOKEN)), limit))
    name, network, tokenizer = resolve(model, dtype_of(out, FILE))
    settings = {
        "model": name,
        "data": data.name,
        "limit": limit,
        "length": length,
        "memory": None if memory_config is None else deciding(memory_config.to_dict()),
        "dtype": dtype_name(network.dtype),
        "questions": digest([[one.id, one.question, one.answers, one.scoring] for one in examples]),
    }
    answers = AnswerFile(out / FILE, settings, provenance(network))
    for _, group in itertools.groupby(examples, key=lambda one: id(one.texts)):
        _ask(list(group), network, tokenizer, memory_config, answers, log)
    return summarise(answers, examples)


def _first(examples: Iterator[Example], limit: int) -> Iterator[Example]:
    """Yield the first questions of each task. A question that comes twice is asked once."""
    seen: set[str] = set()
    counts: dict[str, int] = {}
    for one in examples:
        counts[one.task] = counts.get(one.task, 0) + 1
        if one.id not in seen and (not limit or counts[one.task] <= limit):
            seen.add(one.id)
            yield one


def _ask(
    group: Sequence[Example],
    network: Any,
    tokenizer: Any,
    config: MemoryConfig | None,
    answers: AnswerFile,
    log: Log,
) -> None:
    """Ask questions of one text."""
    there = {(row["id"], row["rival"]) for row in answers.find(kind="answer")}
    missing = [(one, rival) for one in group for rival in RIVALS if (one.id, rival) not in there]
    if not missing:
        return
    with MemoryModel(network, tokenizer, None, config) as mm:
        started = time.monotonic()
        for number, text in enumerate(group[0].texts, 1):
            more = number < len(group[0].texts)
            mm.read(text.text, source=text.source, happened=text.happened, more=more)
        read = time.monotonic() - started
        log(f"{group[0].task}: {mm.stream_tokens:,} tokens read in {read:,.1f} s, {len(group)} questions")
        for (rival, new_tokens), some in itertools.groupby(sorted(missing, key=_how), key=_how):
            examples = [one for one, _ in some]
            before = time.monotonic()

            def answered(
                number: int, answer: Answer, rival: str = rival, examples: Sequence[Example] = examples
            ) -> None:
                nonlocal before
                now = time.monotonic()
                answers.add(
                    kind="answer",
                    id=examples[number].id,
                    rival=rival,
                    reply=answer.text,
                    tokens=mm.stream_tokens,
                    seconds=now - before,  # since the answer before it: several are at work at once
                    recalled=[recall.source for recall in answer.recalled],
                )
                before = now

            how: dict[str, Any] = {**AS_MEASURED, "max_new_tokens": new_tokens, "recall": RIVALS[rival]}
            mm.answer_many([one.question for one in examples], on_answer=answered, **how)


def _how(pair: tuple[Example, str]) -> tuple[str, int]:
    """Return what questions of one batch have in common: who answers, and the most new tokens."""
    example, rival = pair
    return rival, example.max_new_tokens


def summarise(answers: AnswerFile, examples: Sequence[Example]) -> dict[str, Any]:
    """Return scores by task and by who answered, and every question with every reply."""
    rows: dict[tuple[str, str], Mapping[str, Any]] = {
        (row["id"], row["rival"]): row for row in answers.find(kind="answer")
    }
    tasks = list(dict.fromkeys(one.task for one in examples))

    def score(rival: str, task: str) -> dict[str, Any]:
        of = [one for one in examples if task in ("", one.task)]
        return dataclasses.asdict(Score.of([one.score(rows[one.id, rival]["reply"]) for one in of]))

    return {
        "kind": "published",
        "settings": answers.settings,
        "made_with": answers.made_with,
        "tasks": {task: {rival: score(rival, task) for rival in RIVALS} for task in tasks},
        "all": {rival: score(rival, "") for rival in RIVALS},
        "questions": [
            {
                "id": one.id,
                "task": one.task,
                "tokens": rows[one.id, "everlong"]["tokens"],
                "question": one.question,
                "answers": list(one.answers),
                "scoring": one.scoring,
                "replies": {rival: rows[one.id, rival]["reply"] for rival in RIVALS},
            }
            for one in examples
        ],
    }


def print_published(report: Mapping[str, Any], console: Console) -> None:
    """Print the scores in percent, with their 95 % intervals."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for number, heading in enumerate(("task", "questions", *RIVALS)):
        table.add_column(heading, justify="right" if number else "left")
    for task, scores in {**report["tasks"], "all": report["all"]}.items():
        told = [
            f"{100 * one['mean']:.0f} ({100 * one['low']:.0f} to {100 * one['high']:.0f})" for one in scores.values()
        ]
        table.add_row(task, str(scores["everlong"]["n"]), *told)
    console.print(table)
