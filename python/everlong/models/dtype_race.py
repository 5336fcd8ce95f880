"""Races between dtypes: which one a model reads faster in on this machine.

Other work on the machine makes a time too long, never too short. So the dtypes take turns, and the best time of each
counts. An outcome is kept, and nothing is timed again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MOST_ROUNDS = 4  # rounds of one race
ENOUGH = 0.8  # seconds of all times, after which a race ends: long times average out what other work does to them
_STEADY = 1.25  # two rounds of one dtype differ by less, where nothing else is at work

# Returns the seconds that what is timed takes in this dtype, by its name.
Timed = Callable[[str], float]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a race."""

    seconds: Mapping[str, float]  # the best of each dtype

    @property
    def dtype(self) -> str:
        """The fastest dtype; of equal ones the first that was timed."""
        return min(self.seconds, key=lambda dtype: self.seconds[dtype])


def race(dtypes: Sequence[str], timed: Timed) -> Outcome:
    """Time each dtype in turn, round after round, until the times are steady; at most MOST_ROUNDS times, or ENOUGH."""
    rounds: list[Mapping[str, float]] = []
    while len(rounds) < MOST_ROUNDS and not _is_steady(rounds) and sum(sum(one.values()) for one in rounds) < ENOUGH:
        rounds.append({dtype: timed(dtype) for dtype in dtypes})
    return Outcome({dtype: min(one[dtype] for one in rounds) for dtype in dtypes})


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
        return Outcome(seconds) if min(seconds.values()) > 0 else None
    except (ValueError, TypeError, KeyError):
        return None
