"""The shipped sets of questions with the text that answers them, and of dialogues (LICENSE-qa.md)."""

from __future__ import annotations

import json
import lzma
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

_SHIPPED = pathlib.Path(__file__).parent / "qa"


def qa_lines(name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of `name`.jsonl.xz, in order."""
    with lzma.open(_SHIPPED / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def qa_dialogues(name: str) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """Yield the dialogues of `name`.json.xz by name: each turn's words, and whether the topic shifts with it."""
    with lzma.open(_SHIPPED / f"{name}.json.xz", "rt", encoding="utf-8") as file:
        for dialogue, turns in json.load(file).items():
            yield dialogue, [(words, shifts == "1") for words, shifts in turns]
