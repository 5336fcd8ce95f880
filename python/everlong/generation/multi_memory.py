"""Questions to several memories of one model, answered at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from everlong.generation.answer import Answer
from everlong.generation.memory_model import MemoryModel
from everlong.kv_cache.batching import JobCancelled, run_batched


def generate_many(
    questions: Iterable[tuple[MemoryModel, str]], max_new_tokens: int | None = None, /, **options: Any
) -> list[Answer]:
    """Ask each MemoryModel its question, as `mm.generate(question, max_new_tokens, **options)` does, all at once.

    What they compute is computed in one forward, where they share one model object (kv_cache/batching.py). Each answer
    is the one that it would be alone, to rounding. Each is remembered in its own memory, unless `remember=False` is
    given. Where one fails, the others are answered all the same, then its error is raised. ValueError for a MemoryModel
    that is asked twice: `answer_many` asks one memory several questions.
    """
    rows = list(questions)
    if len({id(mm) for mm, _ in rows}) < len(rows):
        raise ValueError("a MemoryModel is asked twice at once; its answer_many takes several questions")

    errors: dict[int, BaseException] = {}

    def answer(number: int) -> Answer | None:
        mm, question = rows[number]
        try:
            return mm.generate(question, max_new_tokens, **options)
        except JobCancelled:
            raise
        except BaseException as error:  # an interrupt in one's streamer is that one's own, too
            errors[number] = error
            return None

    workers: list[Callable[[int], Answer | None]] = [answer] * len(rows)
    answers = dict(run_batched(workers, range(len(rows))))
    if errors:
        raise errors[min(errors)]
    return [one for _, one in sorted(answers.items()) if one is not None]
