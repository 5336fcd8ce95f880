"""The tasks of the evaluation suites: one file a family, one dataclass a task."""

from __future__ import annotations

from everlong_lab.corpora.tasks import babi, dialogue, infinite, ruler
from everlong_lab.corpora.tasks.draw import Draw
from everlong_lab.corpora.tasks.question import Document, Question, Task

__all__ = ["FAMILIES", "SUITES", "TASKS", "Document", "Draw", "Question", "Task", "tasks_of"]

FAMILIES: dict[str, tuple[Task, ...]] = {
    "ruler": ruler.TASKS,
    "infinite": infinite.TASKS,
    "babi": babi.TASKS,
    "dialogue": dialogue.TASKS,
}
TASKS: dict[str, Task] = {task.name: task for tasks in FAMILIES.values() for task in tasks}
SUITES: dict[str, tuple[Task, ...]] = {**FAMILIES, "all": tuple(TASKS.values())}


def tasks_of(name: str) -> tuple[Task, ...]:
    """Return the tasks of a suite, or the task of that name. Raises ValueError with a list of both."""
    if name in SUITES:
        return SUITES[name]
    if name in TASKS:
        return (TASKS[name],)
    raise ValueError(f"no suite or task {name!r}; suites: {', '.join(SUITES)}; tasks: {', '.join(TASKS)}")
