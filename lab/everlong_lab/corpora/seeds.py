"""How a seed becomes draws: every maker of text draws from the seed and its own kind.

With the same seed, two kinds draw differently and one kind always draws the same. The numbers of kinds must stay as
they are, as packs were trained and figures measured on what they draw. A new kind takes the next number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from everlong_lab.corpora.pairs import Split

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")

# Kinds that are older than this rule share numbers: their makers draw different things.
KINDS: Final = {
    "attended": 0, "evicted": 0, "joined": 0, "plain": 0, "frames train": 0,
    "scenarios": 1, "frames fit": 1, "frames test": 2, "walks test": 4, "walks train": 5, "told": 5, "told stories": 7,
}  # fmt: skip


def draws(seed: int, kind: str) -> np.random.Generator:
    """Return the generator from which a maker of one of KINDS draws arrays."""
    import numpy as np  # imported here: the command line lists the suites where it shows its help

    return np.random.default_rng((seed, KINDS[kind]))


def picks(seed: int, kind: str) -> random.Random:
    """Return the generator with which a maker of any kind picks from lists: facts, books, suites."""
    return random.Random(f"{kind} {seed}")


def held_out_in_turn(number: int) -> Split:
    """Return the split of the number-th text of a row: one in eight is for fitting."""
    return "fit" if number % 8 == 7 else "train"


def one_of(random: np.random.Generator, listed: Sequence[T]) -> T:
    return listed[int(random.integers(len(listed)))]


def in_turn(seed: int, number: int, count: int) -> int:
    """Return which of `count` things a lesson is about.

    Each comes once before any comes again, and the order is the same whoever asks.
    """
    return random.Random(f"{seed} {number // count}").sample(range(count), count)[number % count]
