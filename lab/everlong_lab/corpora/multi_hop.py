"""Questions of MuSiQue and HotpotQA over their passages, as HippoRAG prepares them (lines of JSON, xz or plain).

They become one memory of all passages. A question's spans are the passages that support its answer.
"""

from __future__ import annotations

import json
import lzma
import pathlib
from collections.abc import Iterator
from typing import Any

import torch

from everlong.errors import EverlongError
from everlong.text.encoding import encode
from everlong_lab.corpora.record import Question, Record


def multi_hop_text(tokenizer: Any, questions: pathlib.Path, corpus: pathlib.Path) -> Record:
    """Return all passages one after the other, with the questions; a question's spans are its supporting passages.

    Raises EverlongError for a file of another form, or a passage that the corpus does not have.
    """
    try:
        passages = [(line["title"], _words(line["text"])) for line in _lines(corpus)]
        asked = [_question(line) for line in _lines(questions)]
    except (KeyError, TypeError, ValueError, lzma.LZMAError) as error:
        raise EverlongError(
            f"{questions} and {corpus} are no questions and passages of this form: {error!r}"
        ) from error
    pieces = [encode(tokenizer, f"{title}\n{text}\n\n") for title, text in passages]
    begins = [0]
    for piece in pieces:
        begins.append(begins[-1] + len(piece))
    place = {passage: (begins[at], begins[at + 1]) for at, passage in enumerate(passages)}
    questions_of = []
    for question, supporting, answer in asked:
        missing = [title for title, text in supporting if (title, text) not in place]
        if missing:
            raise EverlongError(f"{corpus} has no passage {missing[0]!r} as {questions} has it")
        questions_of.append(Question(question, (answer,), tuple(place[passage] for passage in supporting)))
    return Record(questions.name, "passages", "test", torch.cat(pieces), tuple(questions_of))


def _lines(file: pathlib.Path) -> Iterator[Any]:
    data = file.read_bytes()
    text = (lzma.decompress(data) if file.suffix == ".xz" else data).decode("utf-8")
    return map(json.loads, filter(None, text.split("\n")))


def _words(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def _question(line: Any) -> tuple[str, list[tuple[str, str]], str]:
    if "paragraphs" in line:  # MuSiQue
        of = [(one["title"], one["paragraph_text"]) for one in line["paragraphs"] if one["is_supporting"]]
    else:  # HotpotQA
        named = {title for title, _ in line["supporting_facts"]}
        of = [(title, _words(sentences)) for title, sentences in line["context"] if title in named]
    return line["question"], list(dict.fromkeys(of)), str(line["answer"])
