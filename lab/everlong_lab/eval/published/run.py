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
from everlong_lab.eval.published.passage_rivals import PASSAGE_RIVALS, PassageRivals, answer_by_text
from everlong_lab.eval.report import Score
from everlong_lab.eval.statistics import mcnemar

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
    if missing:
        _ask_memory(group, missing, network, tokenizer, config, answers, log)
    recalled = {row["id"]: row for row in answers.find(kind="answer", rival="everlong")}
    rivals = PassageRivals(group[0].texts, tokenizer)
    for one, rival in itertools.product((one for one in group if one.evidence), PASSAGE_RIVALS):
        if (one.id, rival) not in there:
            before = time.monotonic()
            passages = rivals.passages(rival, one, recalled[one.id])
            reply = answer_by_text(network, tokenizer, one, passages)
            answers.add(
                kind="answer",
                id=one.id,
                rival=rival,
                reply=reply,
                tokens=recalled[one.id]["tokens"],
                seconds=time.monotonic() - before,
                recalled=list(passages.sources),
                recalled_tokens=passages.tokens,
            )


def _ask_memory(
    group: Sequence[Example],
    missing: Sequence[tuple[Example, str]],
    network: Any,
    tokenizer: Any,
    config: MemoryConfig | None,
    answers: AnswerFile,
    log: Log,
) -> None:
    """Read the text, and ask what is missing of it."""
    with MemoryModel(network, tokenizer, None, config) as mm:
        started = time.monotonic()
        for number, text in enumerate(group[0].texts, 1):
            more = number < len(group[0].texts)
            mm.read(text.text, source=text.source, happened=text.happened, more=more)
        read = time.monotonic() - started
        log(f"{group[0].task}: {mm.stream_tokens:,} tokens read in {read:,.1f} s, {len(group)} questions")
        before_it = [one.source for one in mm.memory.blocks() if one.span[1] > mm.frame.os.rolling[0]]
        in_frame = list(dict.fromkeys([*before_it, group[0].texts[-1].source]))
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
                    recalled_tokens=sum(recall.span[1] - recall.span[0] for recall in answer.recalled),
                    passages=[recall.text for recall in answer.recalled],
                    in_frame=in_frame,
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

    def score(rival: str, some: Sequence[Example]) -> dict[str, Any]:
        return dataclasses.asdict(Score.of([one.score(rows[one.id, rival]["reply"]) for one in some]))

    several = [one for one in examples if one.evidence]
    return {
        "kind": "published",
        "settings": answers.settings,
        "made_with": answers.made_with,
        "tasks": {
            task: {rival: score(rival, [one for one in examples if one.task == task]) for rival in RIVALS}
            for task in tasks
        },
        "all": {rival: score(rival, examples) for rival in RIVALS},
        "evidence": {
            task: evidence_rows([one for one in several if one.task == task], rows)
            for task in dict.fromkeys(one.task for one in several)
        },
        "questions": [
            {
                "id": one.id,
                "task": one.task,
                "tokens": rows[one.id, "everlong"]["tokens"],
                "question": one.question,
                "answers": list(one.answers),
                "scoring": one.scoring,
                "evidence": list(one.evidence),
                "replies": {rival: rows[one.id, rival]["reply"] for rival in rivals_of(one)},
            }
            for one in examples
        ],
    }


def rivals_of(example: Example) -> tuple[str, ...]:
    """Return who answers a question."""
    return (*RIVALS, *(PASSAGE_RIVALS if example.evidence else ()))


def evidence_rows(examples: Sequence[Example], rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Any]:
    """Return for each rival how much evidence it had, how often it was right, and what that cost.

    Shares are of all questions, `right_of_found` of those whose evidence all came back, or stood in the frame. `p` is
    McNemar's, of being right, beside everlong.
    """
    right = {
        rival: [one.is_right(rows[one.id, rival]["reply"]) for one in examples] for rival in (*RIVALS, *PASSAGE_RIVALS)
    }

    def row(rival: str) -> dict[str, Any]:
        own = [rows[one.id, rival] for one in examples]
        had = [
            set(one.evidence) & {*of["recalled"], *of.get("in_frame", ())}
            for one, of in zip(examples, own, strict=True)
        ]
        whole = [some == set(one.evidence) for one, some in zip(examples, had, strict=True)]
        of_found = [is_right for is_right, found in zip(right[rival], whole, strict=True) if found]
        count = len(examples)
        return {
            "questions": count,
            "all_evidence": sum(whole) / count,
            "evidence": sum(len(some) for some in had) / sum(len(one.evidence) for one in examples),
            "right": sum(right[rival]) / count,
            "f1": sum(one.score(of["reply"]) for one, of in zip(examples, own, strict=True)) / count,
            "right_of_found": sum(of_found) / len(of_found) if of_found else None,
            "tokens": sum(of["recalled_tokens"] for of in own) / count,
            "seconds": sum(of["seconds"] for of in own) / count,
            "p": None if rival == "everlong" else mcnemar(right["everlong"], right[rival]),
        }

    return {rival: row(rival) for rival in right}


def print_published(report: Mapping[str, Any], console: Console) -> None:
    """Print the scores in percent, with their 95 % intervals, and a table for each task that names its evidence."""
    table = _table("", ("task", "questions", *RIVALS))
    for task, scores in {**report["tasks"], "all": report["all"]}.items():
        cells = [
            f"{100 * one['mean']:.0f} ({100 * one['low']:.0f} to {100 * one['high']:.0f})" for one in scores.values()
        ]
        table.add_row(task, str(scores["everlong"]["n"]), *cells)
    console.print(table)
    for task, rivals in report["evidence"].items():
        table = _table(task, ("", *_EVIDENCE_COLUMNS))
        for rival, row in rivals.items():
            table.add_row(rival, *(_cell(name, row[name]) for name in _EVIDENCE_COLUMNS.values()))
        console.print(table)


# By heading, the field of `evidence_rows`.
_EVIDENCE_COLUMNS = {
    "all evidence": "all_evidence",
    "evidence": "evidence",
    "right": "right",
    "F1": "f1",
    "right of found": "right_of_found",
    "tokens": "tokens",
    "seconds": "seconds",
    "p": "p",
}


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if name == "tokens" else f"{value:.2f}" if name in ("seconds", "p") else f"{100 * value:.1f}"


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title or None, box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    return table
