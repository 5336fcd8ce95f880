"""The report of a suite: plain values, from its answers alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from everlong.eval.answers import AnswerFile
from everlong.eval.plan import Asked, Plan
from everlong.eval.statistics import mean_interval
from everlong.eval.tasks import Task

_REPLY_CHARACTERS = 160  # of a reply that a report keeps


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


def summarise(
    answers: AnswerFile, plan: Plan, baselines: Sequence[str], tasks: Sequence[Task], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Scores by baseline, task and length, what each baseline costs, and every question with every reply."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}  # baseline, question id
    for row in answers.find(kind="answer"):
        rows.setdefault(row["baseline"], {})[row["id"]] = row
    ids = {asked.id for asked in plan.questions}
    given = [baseline for baseline in baselines if ids <= rows.get(baseline, {}).keys()]
    scores = {
        baseline: {asked.id: asked.question.score(rows[baseline][asked.id]["reply"]) for asked in plan.questions}
        for baseline in given
    }
    lengths = list(plan.read_at)

    def score(baseline: str, questions: Sequence[Asked]) -> dict[str, Any]:
        return dataclasses.asdict(Score.of([scores[baseline][asked.id] for asked in questions]))

    def of(task: str = "", length: int = 0) -> list[Asked]:
        return [a for a in plan.questions if task in ("", a.task) and length in (0, a.length)]

    read = answers.find(kind="read")
    return {
        "kind": "suite",
        "settings": dict(settings),
        "tokens": plan.tokens,
        "reading": {
            "tokens": sum(row["tokens"] for row in read),
            "seconds": round(math.fsum(row["seconds"] for row in read), 1),
        },
        "tasks": {task.name: {"family": task.family, "about": (type(task).__doc__ or "").strip()} for task in tasks},
        "lengths": lengths,
        "baselines": {
            baseline: {
                "score": score(baseline, plan.questions),
                "by_length": {str(length): score(baseline, of(length=length)) for length in lengths},
                "by_task": {
                    task.name: {str(length): score(baseline, of(task.name, length)) for length in lengths}
                    for task in tasks
                },
                "cost": _cost(answers, baseline, [rows[baseline][asked.id] for asked in plan.questions]),
            }
            for baseline in given
        },
        "questions": [
            {
                "id": asked.id,
                "task": asked.task,
                "length": asked.length,
                "depth": round(asked.depth, 4),
                "question": asked.question.text,
                "answers": list(asked.question.answers),
                "replies": {
                    baseline: {
                        "score": round(scores[baseline][asked.id], 4),
                        "covered": round(rows[baseline][asked.id]["covered"], 4),
                        "reply": rows[baseline][asked.id]["reply"][:_REPLY_CHARACTERS],
                    }
                    for baseline in given
                },
            }
            for asked in plan.questions
        ],
    }


def _cost(answers: AnswerFile, baseline: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means of a question, and what was done once for each length."""

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


def print_suite(report: Mapping[str, Any], console: Console) -> None:
    """Scores by task and baseline at every length, then costs."""
    baselines = list(report["baselines"])
    for length in report["lengths"]:
        table = Table(title=f"right answers in {length:,} tokens (%)")
        table.add_column("task")
        for baseline in baselines:
            table.add_column(baseline, justify="right")
        for task in report["tasks"]:
            cells = [report["baselines"][baseline]["by_task"][task][str(length)]["mean"] for baseline in baselines]
            table.add_row(task, *(f"{100 * cell:.0f}" for cell in cells))
        table.add_section()
        totals = [report["baselines"][baseline]["by_length"][str(length)] for baseline in baselines]
        table.add_row("all", *(f"{100 * total['mean']:.0f}" for total in totals))
        table.add_row("95 %", *(f"{100 * total['low']:.0f}-{100 * total['high']:.0f}" for total in totals))
        console.print(table)
    table = Table(title="what a question costs")
    for heading in ("baseline", "seconds", "tokens prefilled", "tokens recalled", "answer recalled (%)", "MB held"):
        table.add_column(heading, justify="left" if heading == "baseline" else "right")
    for baseline in baselines:
        cost = report["baselines"][baseline]["cost"]
        held = max(prepared["bytes"] for prepared in cost["prepared"].values())
        table.add_row(
            baseline,
            f"{cost['seconds']:.2f}",
            f"{cost['prefilled']:,.0f}",
            f"{cost['context']:,.0f}",
            f"{100 * cost['covered']:.0f}",
            f"{held / 1e6:,.1f}",
        )
    console.print(table)
    reading = report["reading"]
    console.print(
        f"{report['settings']['model']}: {report['tokens']:,} tokens, read in {reading['seconds']:,.0f} s; "
        f"{len(report['questions'])} questions"
    )
