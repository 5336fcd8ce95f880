"""What is read and asked: the questions of many tasks and lengths, planted in one text that is read once.

The text consists of books. Statements stand between their paragraphs, a task's own documents between two parts of a
book. A question of length L finds all that it needs in the first L tokens. Positions are tokens of the stream that the
texts give when they are read one after the other into a new memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from everlong.data import Book
from everlong.text.prompt import start_ids
from everlong_lab.corpora.haystack import GOLD_TOKENS, Haystack, HaystackPiece, Needle, build_haystack, token_offsets
from everlong_lab.corpora.tasks import Document, Draw, Question, Task
from everlong_lab.corpora.tasks.capacity import PlantedTexts, planted_by, require_capacity


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A question in its place."""

    id: str  # task/length/number
    task: str
    length: int
    question: Question
    spans: tuple[tuple[int, int], ...]  # tokens of the stream that answer
    gold: str  # their text with some text around it: all that a model needs

    @property
    def depth(self) -> float:
        """Where the answer stands on average: 0 at the text's beginning, 1 at its end."""
        middles = [(begin + end) / 2 for begin, end in self.spans]
        return sum(middles) / len(middles) / self.length

    def covered(self, recalled: Sequence[tuple[int, int]]) -> float:
        """Return the share of the answering spans that lie wholly inside the recalled spans, in one of these or
        several.
        """
        whole = joined(recalled)
        held = sum(any(first <= b and e <= last for first, last in whole) for b, e in self.spans)
        return held / len(self.spans)


def joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans in the order of the stream, with those that touch joined.

    So a statement on two pages came back when both did.
    """
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            begin, last = found.pop()
            end = max(end, last)
        found.append((begin, end))
    return found


@dataclasses.dataclass(frozen=True)
class Plan:
    texts: tuple[HaystackPiece, ...]  # in reading order
    read_at: dict[int, int]  # by length: how many of the texts make it up
    questions: tuple[PlannedRun, ...]

    @property
    def tokens(self) -> int:
        return self.texts[-1].end


@dataclasses.dataclass(frozen=True)
class _Statement:
    statement: str
    question: str  # id; empty where it does not answer


@dataclasses.dataclass(frozen=True)
class _Event:
    """Something that happens at a place of the stream that is still to be built."""

    position: int
    document: Document | None = None
    statement: _Statement | None = None
    length: int = 0


def make_plan(
    tasks: Sequence[Task],
    lengths: Sequence[int],
    count: int,
    books: Sequence[Book],
    tokenizer: Any,
    *,
    gold_tokens: int = GOLD_TOKENS,
    seed: int = 0,
) -> Plan:
    """Plan `count` questions of every task at every length (ascending), over the whole depth of each.

    Raises ValueError where the books are too short, or a length is too short for what is planted in it.
    """

    def count_tokens(text: str) -> int:
        return len(token_offsets(tokenizer, text))

    draw = Draw(seed, count_tokens)
    planted: dict[int, PlantedTexts] = {}
    asked: list[tuple[str, str, int, Question]] = []
    events: list[_Event] = []
    for length in lengths:
        at_length: list[Question] = []
        for task in tasks:
            questions = task.questions(count, length, draw)
            at_length += questions
            for number, question in enumerate(questions):
                id = f"{task.name}/{length}/{number}"
                asked.append((id, task.name, length, question))
                events += _statements(id, question, (number + draw.rng.random()) / count, length, draw)
            documents = list(dict.fromkeys(document for question in questions for document in question.documents))
            events += _documents(documents, length, draw)
        events.append(_Event(length, length=length))
        planted[length] = planted_by(at_length, count_tokens)
    require_capacity(tasks, count, planted, lambda: Draw(seed, count_tokens))
    events.sort(key=lambda event: (event.position, event.length))
    haystack, order = _book_text(events, lengths, books, tokenizer, seed)
    return _assemble(asked, haystack, order, tokenizer, gold_tokens)


def _statements(id: str, question: Question, depth: float, length: int, draw: Draw) -> list[_Event]:
    """Return a question's statements with their places. A single one stands at `depth`; several are
    scattered in order.
    """
    needed = question.evidence or question.statements
    stated = [_Statement(text, id if text in needed else "") for text in question.statements]
    depths = [depth] if len(stated) == 1 else sorted(draw.rng.random() for _ in stated)
    others = [(_Statement(text, ""), draw.rng.random()) for text in question.distractors]
    placed = [*zip(stated, depths, strict=True), *others]
    return [_Event(int(where * length), statement=statement) for statement, where in placed]


def _documents(documents: Sequence[Document], length: int, draw: Draw) -> list[_Event]:
    """Return the documents with their places, evenly and in their order: what was said later is read later."""
    count = len(documents)
    return [
        _Event(max(1, int((number + draw.rng.random()) / count * length * 0.98)), document=document)
        for number, document in enumerate(documents)
    ]


def _book_text(
    events: Sequence[_Event], lengths: Sequence[int], books: Sequence[Book], tokenizer: Any, seed: int
) -> tuple[Haystack[_Statement], list[list[_Event]]]:
    """Return the books with the statements, and what comes after each of their cuts."""
    before = 0  # tokens of documents
    cuts: list[int] = []
    order: list[list[_Event]] = []
    statements: list[tuple[_Statement, int]] = []
    latest = 0
    for event in events:
        place = event.position - before
        if event.statement is not None:
            # A document before the statement took its place, so the statement comes after it.
            latest = max(place, latest, cuts[-1] if cuts else 0)
            statements.append((event.statement, latest))
            continue
        if event.length and place <= (cuts[-1] if cuts else 0) and place <= event.length // 4:
            raise ValueError(
                f"{event.length:,} tokens are too few: the documents of these tasks alone come to {before:,}; "
                "ask for longer texts or fewer questions"
            )
        if event.document is not None and cuts and place <= cuts[-1]:
            order[-1].append(event)
        else:
            cuts.append(max(place, cuts[-1] + 1 if cuts else 1))
            order.append([event])
        if event.document is not None:
            before += len(token_offsets(tokenizer, event.document.text))
    last = cuts[-1] - 1
    placed = [(statement, min(place, last)) for statement, place in statements]
    planted = sum(len(token_offsets(tokenizer, f"\n\n{statement.statement}")) for statement, _ in placed)
    if planted > cuts[-1] // 2:
        raise ValueError(
            f"{max(lengths):,} tokens are too few for {planted:,} tokens of planted statements; "
            "ask for longer texts or fewer questions"
        )
    facts = [statement for statement, _ in placed]
    return build_haystack(books, tokenizer, cuts, facts, [place for _, place in placed], seed), order


def _assemble(
    questions: Sequence[tuple[str, str, int, Question]],
    haystack: Haystack[_Statement],
    order: Sequence[Sequence[_Event]],
    tokenizer: Any,
    gold_tokens: int,
) -> Plan:
    texts: list[HaystackPiece] = []
    place: dict[Document, int] = {}  # index into texts
    moved: list[int] = []  # of each part of the haystack: index into texts
    read_at: dict[int, int] = {}

    def add(part: HaystackPiece) -> None:
        begin = texts[-1].end if texts else len(start_ids(tokenizer))
        texts.append(dataclasses.replace(part, begin=begin, end=begin + len(part.offsets)))

    for first, last, events in zip((0, *haystack.checkpoints), haystack.checkpoints, order, strict=False):
        for part in haystack.parts[first:last]:
            moved.append(len(texts))
            add(part)
        for event in events:
            if event.document is not None:
                place[event.document] = len(texts)
                offsets = token_offsets(tokenizer, event.document.text)
                add(HaystackPiece(event.document.source, event.document.text, 0, 0, offsets))
            else:
                read_at[event.length] = len(texts)

    needles: dict[str, list[Needle[_Statement]]] = {}
    for needle in haystack.needles:
        needles.setdefault(needle.fact.question, []).append(needle)
    runs = []
    for id, task, length, question in questions:
        found: list[tuple[int, int, int]] = []  # text, first and last token of the stream
        for needle in needles.get(id, []):
            text = moved[needle.part]
            shift = texts[text].begin - haystack.parts[needle.part].begin
            found.append((text, needle.begin + shift, needle.end + shift))
        for document in question.documents:
            found += _evidence(texts, place[document], question.evidence)
        spans = tuple((begin, end) for _, begin, end in found)
        runs.append(PlannedRun(id, task, length, question, spans, _gold(texts, found, gold_tokens)))
    return Plan(tuple(texts), read_at, tuple(runs))


def _evidence(texts: Sequence[HaystackPiece], number: int, evidence: Sequence[str]) -> list[tuple[int, int, int]]:
    part = texts[number]
    if not evidence:
        return [(number, part.begin, part.end)]
    found = []
    for wanted in evidence:
        first = part.text.find(wanted)
        if first >= 0:
            inside = np.flatnonzero((part.offsets[:, 0] < first + len(wanted)) & (part.offsets[:, 1] > first))
            found.append((number, part.begin + int(inside[0]), part.begin + int(inside[-1]) + 1))
    return found


def _gold(texts: Sequence[HaystackPiece], found: Sequence[tuple[int, int, int]], tokens: int) -> str:
    """Return the texts around the spans: `tokens` tokens in all, or the spans alone where these are longer."""
    share = tokens // len(found)
    passages = [texts[text].around(begin, end, max(share, end - begin)).strip() for text, begin, end in found]
    return "\n\n".join(dict.fromkeys(passages))
