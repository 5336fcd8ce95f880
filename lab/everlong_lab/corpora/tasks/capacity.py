"""Whether a suite's texts have room for what is planted for its questions, and which would have."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

from everlong_lab.corpora.tasks import Draw, Question, Task


@dataclasses.dataclass(frozen=True)
class PlantedTexts:
    """Tokens that the questions of one length bring into the text."""

    documents: int
    statements: int


def planted_by(questions: Sequence[Question], count_tokens: Callable[[str], int]) -> PlantedTexts:
    documents = {document for question in questions for document in question.documents}
    statements = [text for question in questions for text in (*question.statements, *question.distractors)]
    return PlantedTexts(
        sum(count_tokens(document.text) for document in documents),
        sum(count_tokens(f"\n\n{text}") for text in statements),
    )


def require_capacity(
    tasks: Sequence[Task], count: int, planted: Mapping[int, PlantedTexts], new_draw: Callable[[], Draw]
) -> None:
    """Raise ValueError where a length is too short for what is planted in it; the error says what would fit.

    `planted` has an entry for every length.
    """
    for length in planted:
        if not _fits(length, planted):
            own = planted[length]
            raise ValueError(
                f"{length:,} tokens are too few: the documents of these tasks come to {own.documents:,}, their "
                f"statements to {own.statements:,}; {_advice(tasks, list(planted), length, count, new_draw)}"
            )


def _fits(length: int, planted: Mapping[int, PlantedTexts]) -> bool:
    """Return whether a length has room. What is planted for a longer text is spread over it, so a share of it counts
    here.
    """
    share = {other: min(1.0, length / other) for other in planted}
    documents = sum(share[other] * own.documents for other, own in planted.items())
    statements = sum(share[other] * own.statements for other, own in planted.items())
    # Books take as much room between the statements as these do, and at least a quarter of the text.
    return documents + max(2 * statements, length / 4) <= length


def _advice(
    tasks: Sequence[Task], lengths: Sequence[int], length: int, count: int, new_draw: Callable[[], Draw]
) -> str:
    def planted(at: Sequence[int], questions: int) -> dict[int, PlantedTexts]:
        draw = new_draw()
        return {
            one: planted_by([q for task in tasks for q in task.questions(questions, one, draw)], draw.count_tokens)
            for one in at
        }

    longer = next(one for one in (length << n for n in itertools.count(1)) if _fits(one, planted([one], count)))
    advice = f"{longer:,} tokens hold {count} of each task"
    for fewer in range(count - 1, 0, -1):
        there = planted(lengths, fewer)
        if all(_fits(one, there) for one in lengths):
            return f"{advice}, or ask for fewer questions: {fewer} of each fit"
    return f"{advice}; even one of each is too many here: ask for fewer tasks or longer texts"
