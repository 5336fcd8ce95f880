"""The one rule by which a seed becomes draws: whatever makes text draws from the seed and its own kind.

Of the same seed two kinds draw differently, and one kind always the same. Numbers of kinds stay as they are, for packs
were trained and figures measured on what they draw; a new kind takes the next number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np

from everlong.corpora.pairs import Split

T = TypeVar("T")

# Kinds that were drawn before there was a rule share numbers: their makers draw different things.
KINDS: Final = {
    "attended": 0, "evicted": 0, "joined": 0, "plain": 0, "frames train": 0,
    "scenarios": 1, "frames fit": 1, "frames test": 2, "walks test": 4, "walks train": 5, "told": 5, "told stories": 7,
}  # fmt: skip


def draws(seed: int, kind: str) -> np.random.Generator:
    """What a maker of one of KINDS draws arrays from."""
    return np.random.default_rng((seed, KINDS[kind]))


def picks(seed: int, kind: str) -> random.Random:
    """What a maker of any kind picks from lists with: facts, books, suites."""
    return random.Random(f"{kind} {seed}")


def held_out_in_turn(number: int) -> Split:
    """Of texts that are made one after the other, one in eight is for fitting."""
    return "fit" if number % 8 == 7 else "train"


def one_of(random: np.random.Generator, listed: Sequence[T]) -> T:
    return listed[int(random.integers(len(listed)))]


def in_turn(seed: int, number: int, count: int) -> int:
    """Which of `count` things a lesson is about: each once before any comes again, the same whoever asks."""
    return random.Random(f"{seed} {number // count}").sample(range(count), count)[number % count]
