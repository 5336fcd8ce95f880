"""How a seed becomes draws."""

from __future__ import annotations

import random


def in_turn(seed: int, number: int, count: int) -> int:
    """Which of `count` things a lesson is about: each once before any comes again, the same whoever asks."""
    return random.Random(f"{seed} {number // count}").sample(range(count), count)[number % count]
