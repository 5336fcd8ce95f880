"""Questions over several passages: HotpotQA and MuSiQue, with the passages that answer them."""

from __future__ import annotations

import collections
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everlong_lab.eval.published.example import Example, Text

Row = Mapping[str, Any]
Passage = tuple[str, str]  # title, text


def hotpotqa(row: Row, file: Path) -> Iterator[Example]:
    """Yield a row of HotpotQA (Yang et al. 2018): passages as a title and its sentences."""
    own = [(str(title), _joined(sentences)) for title, sentences in row["context"]]
    supporting = {str(title) for title, _ in row["supporting_facts"]}
    yield _example(row, file, own, [title in supporting for title, _ in own], (str(row["answer"]),))


def musique(row: Row, file: Path) -> Iterator[Example]:
    """Yield a row of MuSiQue (Trivedi et al. 2022)."""
    own = [(str(one["title"]), str(one["paragraph_text"])) for one in row["paragraphs"]]
    flags = [bool(one["is_supporting"]) for one in row["paragraphs"]]
    yield _example(row, file, own, flags, (str(row["answer"]), *map(str, row.get("answer_aliases") or ())))


def _example(
    row: Row, file: Path, own: Sequence[Passage], supporting: Sequence[bool], answers: tuple[str, ...]
) -> Example:
    """Make the question over its own passages, or over all of a corpus, where NAME_corpus.json stands beside it."""
    corpus = file.with_name(f"{file.stem}_corpus.json")
    texts, sources = _corpus_of(corpus) if corpus.is_file() else _texts_of(own)
    evidence = dict.fromkeys(sources[passage] for passage, is_one in zip(own, supporting, strict=True) if is_one)
    name = f"{file.stem}/{row.get('_id') or row.get('id')}"
    question = f"{row['question']} Answer in a few words."
    return Example(name, file.stem, texts, question, answers, "words", 32, tuple(evidence))


@functools.lru_cache(maxsize=2)
def _corpus_of(file: Path) -> tuple[tuple[Text, ...], dict[Passage, str]]:
    """Read a corpus: rows with `title` and `text`, or sentences by title. All its questions get one tuple of texts."""
    found = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(found, dict):
        return _texts_of([(title, _joined(sentences)) for title, sentences in found.items()])
    return _texts_of([(str(one["title"]), str(one["text"])) for one in found])


def _texts_of(passages: Sequence[Passage]) -> tuple[tuple[Text, ...], dict[Passage, str]]:
    """Return what is read, and the source of each passage: its title, with a number from the second one of a title."""
    counts: collections.Counter[str] = collections.Counter()
    sources: dict[Passage, str] = {}
    for title, text in passages:
        if (title, text) not in sources:
            counts[title] += 1
            sources[title, text] = title if counts[title] == 1 else f"{title} ({counts[title]})"
    return tuple(Text(f"{title}\n{text}\n", source) for (title, text), source in sources.items()), sources


def _joined(sentences: Sequence[str] | str) -> str:
    return sentences if isinstance(sentences, str) else "".join(sentences)
