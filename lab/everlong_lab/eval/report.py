"""The report of a suite: plain values, from its answers alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from everlong_lab.corpora.tasks import FAMILIES, Task
from everlong_lab.eval.answers import AnswerFile
from everlong_lab.eval.plan import Plan, PlannedRun
from everlong_lab.eval.statistics import mean_interval


@dataclasses.dataclass(frozen=True)
class Score:
    """The mean score of some questions with its 95 % interval."""

    n: int
    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, scores: Sequence[float]) -> Score:
        low, high = mean_interval(scores)
        return cls(len(scores), math.fsum(scores) / len(scores), low, high)


def summarise(answers: AnswerFile, plan: Plan, baselines: Sequence[str], tasks: Sequence[Task]) -> dict[str, Any]:
    """Return scores by baseline, task and length, each baseline's costs, and every question with every reply."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}  # baseline, question id
    for row in answers.find(kind="answer"):
        rows.setdefault(row["baseline"], {})[row["id"]] = row
    ids = {question.id for question in plan.questions}
    given = [baseline for baseline in baselines if ids <= rows.get(baseline, {}).keys()]
    scores = {
        baseline: {
            question.id: question.question.score(rows[baseline][question.id]["reply"]) for question in plan.questions
        }
        for baseline in given
    }
    lengths = list(plan.read_at)

    def score(baseline: str, questions: Sequence[PlannedRun]) -> dict[str, Any]:
        return dataclasses.asdict(Score.of([scores[baseline][question.id] for question in questions]))

    def of(task: str = "", length: int = 0) -> list[PlannedRun]:
        return [a for a in plan.questions if task in ("", a.task) and length in (0, a.length)]

    read = answers.find(kind="read")
    asked_seconds = [row["seconds"] for baseline in given for row in rows[baseline].values()]
    prepared = [row for row in answers.find(kind="prepared") if row["baseline"] in given]
    return {
        "kind": "suite",
        "settings": answers.settings,
        "made_with": answers.made_with,
        "tokens": plan.tokens,
        "reading": {
            "tokens": sum(row["tokens"] for row in read),
            "seconds": round(math.fsum(row["seconds"] for row in read), 1),
        },
        # Seconds of reading, and of preparing and asking the baselines here.
        "seconds": round(math.fsum([*asked_seconds, *(row["seconds"] for row in [*read, *prepared])]), 1),
        "tasks": {
            task.name: {
                "family": next(name for name, tasks_of in FAMILIES.items() if task in tasks_of),
                "about": (type(task).__doc__ or "").strip(),
            }
            for task in tasks
        },
        "lengths": lengths,
        "baselines": {
            baseline: {
                "score": score(baseline, plan.questions),
                "by_length": {str(length): score(baseline, of(length=length)) for length in lengths},
                "by_task": {
                    task.name: {str(length): score(baseline, of(task.name, length)) for length in lengths}
                    for task in tasks
                },
                "cost": _cost(answers, baseline, [rows[baseline][question.id] for question in plan.questions]),
            }
            for baseline in given
        },
        "questions": [
            {
                "id": question.id,
                "task": question.task,
                "length": question.length,
                "depth": round(question.depth, 4),
                "question": question.question.text,
                "answers": list(question.question.answers),
                "replies": {
                    baseline: {
                        "score": round(scores[baseline][question.id], 4),
                        "covered": round(rows[baseline][question.id]["covered"], 4),
                        "reply": rows[baseline][question.id]["reply"],
                    }
                    for baseline in given
                },
            }
            for question in plan.questions
        ],
    }


def _cost(answers: AnswerFile, baseline: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return means for a question, and what was done once for each length."""

    def mean(key: str) -> float:
        return math.fsum(row[key] for row in rows) / len(rows)

    prepared = answers.find(kind="prepared", baseline=baseline)
    return {
        "seconds": round(mean("seconds"), 3),
        "prefilled": round(mean("prefilled"), 1),
        "context": round(mean("context"), 1),
        "covered": round(mean("covered"), 4),
        "prepared": {
            str(row["length"]): {
                "seconds": round(row["seconds"], 2),
                "prefilled": row["prefilled"],
                "bytes": row["bytes"],
            }
            for row in prepared
        },
    }


def markdown(report: Mapping[str, Any]) -> str:
    """Return the tables of a report in Markdown: scores by task and baseline at every length, then costs."""
    parts = []
    for title, headings, rows in _tables(report):
        lines = [f"**{title}**", "", f"| {' | '.join(headings)} |", "|---|" + "---:|" * (len(headings) - 1)]
        lines += [f"| {' | '.join(row)} |" for row in rows]
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, _summary(report)]) + "\n"


def print_suite(report: Mapping[str, Any], console: Console) -> None:
    """Print the same tables on a terminal."""
    for title, headings, rows in _tables(report):
        console.print(f"\n{title}", style="bold", highlight=False)
        table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
        for number, heading in enumerate(headings):
            # A long heading goes on below on a narrow terminal; the first column is never broken.
            table.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=not number)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(_summary(report))


def _tables(report: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield title, headings and rows of each table."""
    baselines = report["baselines"]
    for length in map(str, report["lengths"]):
        rows = []
        for task in report["tasks"]:
            means = [baseline["by_task"][task][length]["mean"] for baseline in baselines.values()]
            rows.append([task, *(f"{100 * mean:.0f}" for mean in means)])
        totals = [baseline["by_length"][length] for baseline in baselines.values()]
        rows.append(["all tasks", *(f"{100 * total['mean']:.0f}" for total in totals)])
        for bound, name in (("low", "95 %: from"), ("high", "95 %: to")):
            rows.append([name, *(f"{100 * total[bound]:.0f}" for total in totals)])
        yield f"Right answers in {int(length):,} tokens (%)", ["task", *baselines], rows
    headings = [
        "baseline",
        "seconds a question",
        "tokens prefilled a question",
        "tokens recalled",
        "answer recalled (%)",
        "MB held",
        "seconds once",
        "tokens prefilled once",
    ]
    rows = []
    for name, baseline in baselines.items():
        cost = baseline["cost"]
        once = list(cost["prepared"].values())
        rows.append(
            [
                name,
                f"{cost['seconds']:.2f}",
                f"{cost['prefilled']:,.0f}",
                f"{cost['context']:,.0f}",
                f"{100 * cost['covered']:.0f}",
                f"{max(one['bytes'] for one in once) / 1e6:,.1f}",
                f"{max(one['seconds'] for one in once):,.1f}",
                f"{max(one['prefilled'] for one in once):,}",
            ]
        )
    yield "What it costs", headings, rows


def _summary(report: Mapping[str, Any]) -> str:
    reading = report["reading"]
    return (
        f"{report['settings']['model']}: {report['tokens']:,} tokens, read in {reading['seconds']:,.0f} s; "
        f"{len(report['questions'])} questions, {report['settings']['count']} of each task at each length; "
        f"seed {report['settings']['seed']}{_in_all(report.get('seconds'))}."
    )


def _in_all(seconds: float | None) -> str:
    """Return what a run took; nothing for a report that does not say."""
    if seconds is None:
        return ""
    return f"; in {seconds / 60:,.0f} min" if seconds >= 120 else f"; in {seconds:,.0f} s"
