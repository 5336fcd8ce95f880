"""Races between dtypes: which one a model reads faster in on this machine, and whether another race is worth it.

Other work on the machine makes a time too long, never too short. So the dtypes take turns, and the best time of each
counts, over all races that were kept. An outcome that other work may have made is tested again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MOST_ROUNDS = 4  # rounds of one race
MOST_RACES = 4  # races of one model on one machine; what is still close then may be either
_CLEAR = 1.25  # the slower dtype takes so many times the faster one's seconds, or more
_STEADY = 1.25  # two rounds of one dtype differ by less, where nothing else is at work

# Returns the seconds that a model of this dtype, by its name, takes for what is timed.
Timed = Callable[[str], float]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one or several races."""

    seconds: Mapping[str, float]  # the best of each dtype
    sure: bool  # clear, and found while the machine did nothing else
    races: int = 1

    @property
    def dtype(self) -> str:
        """The fastest dtype; of equal ones the first that was timed."""
        return min(self.seconds, key=lambda dtype: self.seconds[dtype])

    @property
    def final(self) -> bool:
        """Whether no further race is needed."""
        return self.sure or self.races >= MOST_RACES


def race(dtypes: Sequence[str], timed: Timed, *, before: Outcome | None = None, busy: bool = False) -> Outcome:
    """Time each dtype in turn, round after round, until the outcome is clear and steady; at most MOST_ROUNDS times.

    Best times of an earlier outcome `before` go on counting. `busy`: other work is known to go on meanwhile.
    """
    rounds: list[Mapping[str, float]] = []
    while len(rounds) < MOST_ROUNDS and not _is_steady(rounds):
        rounds.append({dtype: timed(dtype) for dtype in dtypes})
    counted = rounds if before is None else [*rounds, before.seconds]
    best = {dtype: min(one[dtype] for one in counted) for dtype in dtypes}
    faster, slower = min(best.values()), max(best.values())
    sure = not busy and _is_steady(rounds) and slower >= _CLEAR * faster
    return Outcome(best, sure, 1 if before is None else before.races + 1)


def _is_steady(rounds: Sequence[Mapping[str, float]]) -> bool:
    """Return whether the two best times of every dtype are about the same."""
    if len(rounds) < 2:
        return False
    best_two = [sorted(one[dtype] for one in rounds)[:2] for dtype in rounds[0]]
    return all(second <= _STEADY * first for first, second in best_two)


def outcome_text(outcome: Outcome, here: Mapping[str, Any]) -> str:
    """Return an outcome as text to keep. `here` is what it depends on."""
    return json.dumps({**dataclasses.asdict(outcome), "here": here}) + "\n"


def parse_outcome(text: str | None, dtypes: Sequence[str], here: Mapping[str, Any]) -> Outcome | None:
    """Read what was kept of races between these dtypes; None for what is damaged, or was found elsewhere."""
    try:
        kept = json.loads(text or "")
        if kept["here"] != dict(here) or sorted(kept["seconds"]) != sorted(dtypes):
            return None
        seconds = {dtype: float(kept["seconds"][dtype]) for dtype in dtypes}
        return Outcome(seconds, bool(kept["sure"]), int(kept["races"])) if min(seconds.values()) > 0 else None
    except (ValueError, TypeError, KeyError):
        return None
