"""The file formats of published benchmarks. Which one a file has is told by the fields of its first row."""

from __future__ import annotations

import ast
import datetime
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everlong_lab.eval.published import multihop
from everlong_lab.eval.published.example import Example, Scoring, Text

Row = Mapping[str, Any]
_ASKS = re.compile(r"\n[^\S\n]*(?:question|what|which|find)\b", re.IGNORECASE)
_DATE = re.compile(r"(\d{4})[/-](\d{1,2})[/-](\d{1,2})(?:\D*?(\d{1,2}):(\d{2}))?")
_SUFFIXES = (".json", ".jsonl")


def examples_in(path: Path, length: int) -> Iterator[Example]:
    """Yield the questions of a file, or of all JSON files below a folder, in order of their names.

    `length`: characters of a haystack, where a benchmark gives its haystacks apart (NoLiMa). ValueError for a file that
    has none of the formats; of a folder, those are passed over that are no list of rows.
    """
    files = sorted(one for one in path.rglob("*") if one.suffix in _SUFFIXES) if path.is_dir() else [path]
    found = False
    for file in files:
        rows = _rows(file)
        kind = next((name for name, fields in _FIELDS.items() if rows and fields <= rows[0].keys()), None)
        if kind is None:
            if not path.is_dir():
                raise ValueError(f"{file} has none of the formats {', '.join(_FIELDS)}: rows of JSON with their fields")
            continue
        found = True
        if kind == "nolima":
            yield from _nolima(rows, path if path.is_dir() else file.parent.parent, length)
        else:
            yield from itertools.chain.from_iterable(_READERS[kind](row, file) for row in rows)
    if not found:
        raise ValueError(f"{path} has no file in one of the formats {', '.join(_FIELDS)}")


def _rows(file: Path) -> list[Row]:
    text = file.read_text(encoding="utf-8")
    try:
        if file.suffix == ".jsonl":
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from None
    if isinstance(found, dict):
        found = found.get("data") or found.get("rows") or [found]
    rows = [row.get("row", row) if isinstance(row, dict) else row for row in found]
    return rows if all(isinstance(row, dict) for row in rows) else []


def _longbench(row: Row, file: Path) -> Iterator[Example]:
    options = "\n".join(f"({letter}) {row[f'choice_{letter}']}" for letter in "ABCD")
    asked = f"{row['question']}\n{options}\nThe correct answer is"
    task = f"{row.get('domain', 'longbench')}, {row.get('length', '')}".rstrip(", ")
    texts = (Text(str(row["context"]), "context"),)
    yield Example(str(row["_id"]), task, texts, asked, (str(row["answer"]),), "choice", 16)


def _babilong(row: Row, file: Path) -> Iterator[Example]:
    where = "/".join(file.parts[-2:]).removesuffix(file.suffix)
    texts = (Text(str(row["input"]), "context"),)
    asked = f"{row['question']} Answer with one word."
    yield Example(_numbered(where, row, asked), where, texts, asked, (str(row["target"]),), "any", 16)


_INFINITE: dict[str, tuple[str, Scoring, int]] = {
    "longbook_sum_eng": ("Summarize the book.", "words", 256),
    "longbook_qa_eng": ("", "words", 48),
    "longbook_qa_chn": ("", "words", 48),
    "longbook_choice_eng": ("", "choice", 16),
    "longdialogue_qa_eng": ("Which name is missing in place of $$MASK$$?", "any", 16),
    "code_debug": ("Which function has the deliberate error?", "choice", 16),
}


def _infinite(row: Row, file: Path) -> Iterator[Example]:
    task = file.stem
    otherwise, scoring, tokens = _INFINITE.get(task, ("", "any", 48))
    asked = str(row.get("input") or otherwise)
    answers = [str(one) for one in (row["answer"] if isinstance(row["answer"], list) else [row["answer"]])]
    options = list(row.get("options") or ())
    if scoring == "choice" and options:
        listed = "\n".join(f"({chr(65 + at)}) {one}" for at, one in enumerate(options))
        asked = f"{asked or otherwise}\n{listed}\nThe correct answer is"
        answers = [chr(65 + options.index(one)) if one in options else one for one in answers[:1]]
    texts = (Text(str(row["context"]), "context"),)
    yield Example(f"{task}/{row.get('id', _hashed(asked))}", task, texts, asked, tuple(answers), scoring, tokens)


def _ruler(row: Row, file: Path) -> Iterator[Example]:
    """A row is a whole prompt: its last question stands behind the text."""
    task = file.stem if file.stem not in ("validation", "test") else file.parent.name
    prompt = str(row["input"])
    tail = max(0, len(prompt) - 1200)
    places = [found.start() + 1 for found in _ASKS.finditer(prompt, tail)]
    place = places[-1] if places else prompt.rstrip().rfind("\n") + 1
    asked = prompt[place:] + str(row.get("answer_prefix") or row.get("gen_prefix") or "")
    scoring: Scoring = "any" if task.startswith("qa") else "all"
    answers = tuple(map(str, row["outputs"]))
    yield Example(
        f"{task}/{row.get('index', _hashed(prompt))}",
        task,
        (Text(prompt[:place], "context"),),
        asked,
        answers,
        scoring,
        128,
    )


def _longmemeval(row: Row, file: Path) -> Iterator[Example]:
    dates = row.get("haystack_dates") or [""] * len(row["haystack_sessions"])
    texts = tuple(
        Text(_dialogue(session, f"Session of {date}." if date else ""), f"session {number}", _moment(date))
        for number, (session, date) in enumerate(zip(row["haystack_sessions"], dates, strict=True), 1)
    )
    today = f"Today is {row['question_date']}. " if row.get("question_date") else ""
    asked = f"{today}{row['question']}"
    yield Example(
        str(row["question_id"]), str(row.get("question_type", "")), texts, asked, (str(row["answer"]),), "words"
    )


def _beam(row: Row, file: Path) -> Iterator[Example]:
    texts = tuple(
        Text(f"{turn['role']}: {turn['content']}", f"turn {number}", _moment(str(turn.get("time_anchor") or "")))
        for number, turn in enumerate(_turns(row["chat"]), 1)
    )
    told = row["probing_questions"]
    asked = ast.literal_eval(told) if isinstance(told, str) else told
    for task, questions in asked.items():
        for number, one in enumerate(questions or ()):
            right = one.get("ideal_response") or one.get("ideal_answer") or one.get("answer") or ""
            answers = (str(right) or "\n".join(map(str, one.get("rubric") or ())),)
            name = f"{row.get('conversation_id', file.parent.name)}/{task}/{number}"
            yield Example(name, str(task), texts, str(one["question"]), answers, "words", 128)


def _turns(chat: Any) -> Iterator[Row]:
    """Yield the turns of a conversation, however deep they lie; plans in order of their numbers."""
    if isinstance(chat, Mapping) and "content" in chat and "role" in chat:
        yield chat
    elif isinstance(chat, Mapping):
        for name in sorted(chat, key=lambda name: [int(number) for number in re.findall(r"\d+", name)]):
            yield from _turns(chat[name])
    elif isinstance(chat, list):
        for one in chat:
            yield from _turns(one)


def _nolima(rows: Iterable[Row], folder: Path, length: int) -> Iterator[Example]:
    """A needle stands in a haystack at a depth of its own; who it is about is drawn by the question's number."""
    haystacks = [file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.txt"))]
    if not haystacks:
        raise ValueError(f"{folder} has no haystack, a .txt file: give the folder that holds needles and haystacks")
    number = 0
    for row in rows:
        for test, given in row["tests"].items():
            for hop, question in row["questions"].items():
                person = row["character_set"][number % len(row["character_set"])]
                words = {str(at): one for at, one in enumerate(given["input_args"], 1)}
                needle = _filled(row["needle"], {**words, "CHAR": person})
                text = _planted(haystacks[number % len(haystacks)][:length], needle, (number * 7 % 26) / 25)
                asked = _filled(question, words)
                name = f"{row['id']}/{test}/{hop}"
                yield Example(name, hop, (Text(text, "book"),), asked, (person,), "any", 32)
                number += 1


def _filled(template: str, words: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: words.get(found[1], found[0]), template)


def _planted(haystack: str, needle: str, depth: float) -> str:
    """Return a text with a sentence in it, at the end of a line or of a sentence."""
    wanted = int(len(haystack) * depth)
    breaks = [at + 1 for mark in ("\n", ". ") if (at := haystack.rfind(mark, 0, wanted)) >= 0]
    place = max(breaks, default=0)
    return f"{haystack[:place]} {needle} {haystack[place:]}"


def _dialogue(turns: Sequence[Row], head: str) -> str:
    return "\n\n".join(filter(None, [head, *(f"{turn['role']}: {turn['content']}" for turn in turns)])) + "\n"


def _moment(text: str) -> str | None:
    """Return a date as ISO 8601; None for what is none."""
    found = _DATE.search(text)
    if found is None:
        return None
    parts = [int(one) for one in found.groups() if one is not None]
    try:
        return datetime.datetime(*parts).isoformat()  # type: ignore[arg-type]  # year, month, day, and maybe a time
    except ValueError:
        return None


def _numbered(where: str, row: Row, question: str) -> str:
    return f"{where}/{row.get('id', _hashed(str(row['input']) + question))}"


def _hashed(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


# By name, what tells a row of a format; the first that fits is taken.
_FIELDS: dict[str, frozenset[str]] = {
    "longbench-v2": frozenset({"context", "question", "choice_A", "choice_D", "answer"}),
    "longmemeval": frozenset({"haystack_sessions", "question", "answer"}),
    "beam": frozenset({"chat", "probing_questions"}),
    "nolima": frozenset({"needle", "questions", "tests"}),
    "ruler": frozenset({"input", "outputs"}),
    "babilong": frozenset({"input", "question", "target"}),
    "infinitebench": frozenset({"context", "input", "answer"}),
    "hotpotqa": frozenset({"context", "supporting_facts", "question", "answer"}),
    "musique": frozenset({"paragraphs", "question", "answer"}),
}
_READERS: dict[str, Callable[[Row, Path], Iterator[Example]]] = {
    "longbench-v2": _longbench,
    "longmemeval": _longmemeval,
    "beam": _beam,
    "ruler": _ruler,
    "babilong": _babilong,
    "infinitebench": _infinite,
    "hotpotqa": multihop.hotpotqa,
    "musique": multihop.musique,
}
