"""Words that facts are made of (data/words.json). Names are of no region, so that they do not suggest a city."""

from __future__ import annotations

import json
import pathlib
import random
from collections.abc import Iterator, Sequence
from typing import Any


def listed_in(name: str) -> Any:
    """Return what data/`name`.json holds: the words and templates of one maker."""
    return json.loads(pathlib.Path(__file__).with_name("data").joinpath(f"{name}.json").read_text(encoding="utf-8"))


_LISTS: dict[str, list[str]] = listed_in("words")


def _listed(name: str) -> tuple[str, ...]:
    return tuple(_LISTS[name])


ADJECTIVES = _listed("adjectives")
NOUNS = _listed("nouns")
VERBS = _listed("verbs")
FIRST_NAMES = _listed("first_names")
LAST_NAMES = _listed("last_names")
CITIES = _listed("cities")
PASTIMES = _listed("pastimes")
SPOTS = _listed("spots")
SAYING_SUBJECTS = _listed("saying_subjects")
SAYING_VERBS = _listed("saying_verbs")
SAYING_OBJECTS = _listed("saying_objects")


def pairs(rng: random.Random, first: Sequence[str], second: Sequence[str]) -> Iterator[str]:
    """Yield every pair once; a first word comes back only after all the others."""
    left, right = rng.sample(first, len(first)), rng.sample(second, len(second))
    for shift in range(len(right)):
        for index, word in enumerate(left):
            yield f"{word} {right[(index + shift) % len(right)]}"
