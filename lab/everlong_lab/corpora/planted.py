"""Facts planted in text, to learn from: statements of many forms, each with a question and its answer.

None of them has the form of the facts that a memory is measured by (corpora/facts.py).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from everlong.text.encoding import encode
from everlong_lab.corpora.seeds import one_of
from everlong_lab.corpora.words import listed_in


@dataclasses.dataclass(frozen=True)
class PlantedFact:
    statement: str
    question: str
    answer: str


_LISTED = listed_in("planted")
_FORMS: list[tuple[str, str, str]] = _LISTED["forms"]  # statement, question, answer


def draw_planted(random: np.random.Generator, count: int) -> list[PlantedFact]:
    """Return `count` facts, at most 20, no two of which ask about the same person or thing."""
    if count > len(_FORMS):
        raise ValueError(f"{count} facts are wanted, there are {len(_FORMS)} forms of them")
    people, others = np.split(random.permutation(len(_LISTED["people"])), [len(_LISTED["people"]) - 4])
    things, places, ships = (
        random.permutation(len(words)) for words in (_LISTED["things"], _LISTED["places"], _LISTED["ships"])
    )
    facts = []
    for at, form in enumerate(random.permutation(len(_FORMS))[:count]):
        word = "".join(one_of(random, _LISTED["syllables"]) for _ in range(3))
        values = {
            "person": _LISTED["people"][people[at % len(people)]],
            "other": _LISTED["people"][int(random.choice(others))],
            "thing": _LISTED["things"][things[at % len(things)]],
            "place": _LISTED["places"][places[at % len(places)]],
            "ship": _LISTED["ships"][ships[at % len(ships)]],
            "trade": one_of(random, _LISTED["trades"]),
            "food": one_of(random, _LISTED["foods"]),
            "colour": one_of(random, _LISTED["colours"]),
            "month": one_of(random, _LISTED["months"]),
            "beast": one_of(random, _LISTED["beasts"]),
            "metal": one_of(random, _LISTED["metals"]),
            "day": f"{random.integers(4, 20)}th",
            "number": str(random.integers(100, 10_000)),
            "hour": str(random.integers(4, 12)),
            "minute": f"{random.integers(10, 60)}",
            "word": word,
            "phone": f"{random.integers(100, 1000)}-{random.integers(1000, 10_000)}",
            "code": f"{''.join(one_of(random, 'ABCDEFGHKLMNPRSTVWX') for _ in range(3))}-{random.integers(10, 1000)}",
            "count": one_of(random, ("three", "four", "five", "seven", "nine")),
        }
        statement, question, answer = (part.format(**values) for part in _FORMS[form])
        facts.append(PlantedFact(statement[0].upper() + statement[1:], question, answer))
    return facts


_ENDS = re.compile(r"[.!?][\"'\u2019\u201d]?\s*$")


def with_statements(
    tokenizer: Any, text: torch.Tensor, statements: Sequence[str], tokens: int, random: np.random.Generator
) -> tuple[torch.Tensor, list[tuple[int, int]], int]:
    """Plant statements in a text [n] as paragraphs where sentences end.

    It returns `tokens` ids, the tokens [first, last) of each statement, and how many ids of the text are used. Raises
    ValueError where there is too little text or no room.
    """
    paragraphs = [encode(tokenizer, f"\n\n{statement}\n\n") for statement in statements]
    used = tokens - sum(map(len, paragraphs))
    if used < tokens // 4 or len(text) < used:
        raise ValueError(f"{len(statements)} statements and {len(text)} tokens of text do not make {tokens} tokens")
    ends = [at + 1 for at in range(used - 1) if _ENDS.search(tokenizer.decode(text[at : at + 1].tolist()))]
    if len(ends) < len(paragraphs):
        ends = list(range(8, used, max(1, used // (len(paragraphs) + 1))))
    chosen = sorted(int(at) for at in random.choice(ends, len(paragraphs), replace=False))
    pieces, spans, at, length = [], [], 0, 0
    for place, paragraph in zip(chosen, paragraphs, strict=True):
        pieces += [text[at:place], paragraph]
        length += place - at
        spans.append((length, length + len(paragraph)))
        length += len(paragraph)
        at = place
    pieces.append(text[at:used])
    return torch.cat(pieces), spans, used
