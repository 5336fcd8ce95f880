"""Many questions from a file, asked in one load of the model: a JSON object a line, in and out."""

from __future__ import annotations

import codecs
import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everlong.generation.answer import Answer
    from everlong.generation.memory_model import MemoryModel
    from everlong.memory.where import Where


@dataclasses.dataclass(frozen=True)
class FileQuestion:
    """A line of the file."""

    question: str
    source: tuple[str, ...] = ()  # the only sources to recall from
    tags: tuple[str, ...] = ()  # only text with all of these tags is recalled
    answer: str | None = None  # the right answer

    def within(self, where: Where) -> Where:
        """Return `where`, with the question's own sources and tags in place of those, where it has any."""
        own: dict[str, Any] = {"source": self.source, "tags": self.tags}
        return dataclasses.replace(where, **{name: value for name, value in own.items() if value})


_FIELDS = [field.name for field in dataclasses.fields(FileQuestion)]


def questions_in(file: Path) -> list[FileQuestion]:
    """Return the questions of a file in its order, without empty lines. Raises ValueError that names a wrong line, and
    why.
    """
    found = []
    data = file.read_bytes()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # as PowerShell writes it
        try:
            data = data.decode("utf-16").encode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: {error}") from None
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(_question_of(_parse(line)))
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: {error}") from None
    if not found:
        raise ValueError(f"{file} has no question")
    return found


def ask_all(
    mm: MemoryModel,
    listed: Sequence[FileQuestion],
    where: Where,
    tell: Callable[[dict[str, Any]], None],
    max_new_tokens: int | None,
    **generation: Any,
) -> None:
    """Tell each question and its answer as plain values, as soon as it is there; nothing is remembered.

    Answers are greedy, of NEW_TOKENS by default, whatever the model's own settings are, as right answers are counted.
    `generation` is that of `MemoryModel.answer_many`, which says what is raised.
    """
    from everlong.generation.decoding import NEW_TOKENS

    length = NEW_TOKENS if max_new_tokens is None else max_new_tokens
    started = time.perf_counter()

    def answered(number: int, answer: Answer) -> None:
        nonlocal started
        now = time.perf_counter()
        tell(_row(listed[number], answer, now - started))
        started = now

    questions, places = [one.question for one in listed], [one.within(where) for one in listed]
    mm.answer_many(questions, length, where=places, on_answer=answered, do_sample=False, **generation)


def _row(question: FileQuestion, answer: Answer, seconds: float) -> dict[str, Any]:
    from everlong.text.words import states

    row: dict[str, Any] = {
        "question": question.question,
        "text": answer.text,
        "recalled": [
            {"span": one.span, "source": one.source, "score": one.score, "used": one.used, "passage": one.passage}
            for one in answer.recalled
        ],
        "confidence": answer.confidence,
        "seconds": round(seconds, 3),
    }
    return row if question.answer is None else {**row, "right": states(answer.text, question.answer)}


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:  # no JSON, or no UTF-8
        raise ValueError(f"no JSON: {error}") from None


def _question_of(value: Any) -> FileQuestion:
    from everlong.text.prompt import require_unicode
    from everlong.text.words import states

    if not isinstance(value, dict):
        raise ValueError('expected an object such as {"question": "..."}')
    values = {name: one for name, one in value.items() if one is not None}
    unknown = [name for name in values if name not in _FIELDS]
    if unknown:
        raise ValueError(f"there is no {unknown[0]!r}, but {', '.join(_FIELDS)}")
    question, answer = values.get("question"), values.get("answer")
    if not isinstance(question, str) or not question.strip():
        raise ValueError("expected a question, as text")
    if answer is not None and not (isinstance(answer, str) and states(answer, answer)):
        raise ValueError(f"answer is {answer!r}, expected text with a letter or a digit")
    asked = FileQuestion(question, _names(values, "source"), _names(values, "tags"), answer)
    for text in (question, *asked.source, *asked.tags):
        require_unicode(text)
    return asked


def _names(values: Mapping[str, Any], field: str) -> tuple[str, ...]:
    if field not in values:
        return ()
    names = values[field]
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise ValueError(f"{field} is {names!r}, expected a name or a list of names")
    if not listed:
        raise ValueError(f"{field} is an empty list, which chooses nothing: leave it out, and it does not choose")
    return tuple(listed)
