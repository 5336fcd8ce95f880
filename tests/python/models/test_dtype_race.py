"""Which dtype is the faster one, on a machine that does other things too. No clock: every time is made up."""

from __future__ import annotations

import itertools
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import everlong.models.loading as models
from everlong.models import machine
from everlong.models.dtype_race import MOST_RACES, MOST_ROUNDS, Outcome, outcome_text, parse_outcome, race
from everlong.models.profiles import profiles_in

FULL, HALF = "float32", "bfloat16"
BOTH = (FULL, HALF)


def timed(**seconds: list[float]) -> Callable[[str], float]:
    """The next time of each dtype; its last one from then on."""
    turns: dict[str, Iterator[float]] = {
        dtype: itertools.chain(of, itertools.repeat(of[-1])) for dtype, of in seconds.items()
    }
    return lambda dtype: next(turns[dtype])


def test_a_burst_of_other_work_decides_nothing() -> None:
    """It struck bf16 in the first round: one round alone would have kept fp32 at half the speed."""
    found = race(BOTH, timed(float32=[2.0], bfloat16=[5.0, 1.0]))
    assert (found.dtype, found.seconds, found.sure) == (HALF, {FULL: 2.0, HALF: 1.0}, True)


def test_dtypes_take_turns() -> None:
    order: list[str] = []

    def note(dtype: str) -> float:
        order.append(dtype)
        return {FULL: 1.0, HALF: 2.0}[dtype]

    assert race(BOTH, note).dtype == FULL
    assert order == [*BOTH, *BOTH]


@pytest.mark.parametrize("full", [1.0, 1.1])
def test_what_is_close_is_not_sure(full: float) -> None:
    found = race(BOTH, timed(float32=[full], bfloat16=[1.05]))
    assert found.dtype == (FULL if full < 1.05 else HALF)
    assert not found.sure
    assert not found.final


def test_what_never_settles_is_not_sure_and_ends() -> None:
    falling = [2.0**-n for n in range(40)]
    times = {FULL: iter(falling), HALF: iter(4 * one for one in falling)}
    found = race(BOTH, lambda dtype: next(times[dtype]))
    assert (found.dtype, found.sure) == (FULL, False)
    assert next(times[FULL]) == falling[MOST_ROUNDS]


def test_what_was_found_beside_other_work_is_looked_at_again() -> None:
    slow = race(BOTH, timed(float32=[4.0], bfloat16=[8.0]), busy=True)
    assert (slow.dtype, slow.final) == (FULL, False)
    quiet = race(BOTH, timed(float32=[2.0], bfloat16=[1.0]), before=slow)
    assert (quiet.dtype, quiet.final, quiet.races) == (HALF, True, 2)


def test_the_best_time_of_all_races_counts_and_they_come_to_an_end() -> None:
    found = race(BOTH, timed(float32=[2.0], bfloat16=[1.0]), busy=True)
    for races in range(2, MOST_RACES + 1):
        assert not found.final
        found = race(BOTH, timed(float32=[3.0], bfloat16=[9.0]), before=found, busy=True)
        assert (found.dtype, found.races) == (HALF, races)
    assert found.final


def test_an_outcome_is_kept_whole_and_for_its_place_alone() -> None:
    here = {"threads": 2}
    found = Outcome({FULL: 2.0, HALF: 1.0}, True, 3)
    text = outcome_text(found, here)
    assert parse_outcome(text, BOTH, here) == found
    assert parse_outcome(text, BOTH, {"threads": 4}) is None
    assert parse_outcome(text, (FULL, "float16"), here) is None
    for damaged in (None, "", "[]", text[:-5], '{"here": {"threads": 2}, "seconds": 3}', text.replace("2.0", "-1")):
        assert parse_outcome(damaged, BOTH, here) is None


def test_a_decision_of_an_earlier_everlong_is_found_anew() -> None:
    earlier = '{"dtype": "float32", "processor": "x", "threads": 2, "torch": "2"}\n'
    assert parse_outcome(earlier, BOTH, {"processor": "x", "threads": 2, "torch": "2"}) is None


def test_a_loaded_model_is_raced_until_that_is_sure(
    saved_model: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {torch.float32: 1.0, torch.bfloat16: 3.0}  # other work struck bf16 in all rounds
    raced: list[torch.dtype] = []

    def prefill_seconds(model: Any) -> float:
        raced.append(model.dtype)
        return seconds[raced[-1]]

    def loaded() -> torch.dtype:
        raced.clear()
        dtype: torch.dtype = models.load(str(saved_model))[0].dtype
        return dtype

    monkeypatch.setattr(models, "_prefill_seconds", prefill_seconds)
    monkeypatch.setattr(models, "is_busy", lambda: True)
    with profiles_in(tmp_path / "profiles"):
        assert loaded() == torch.float32
        monkeypatch.setattr(models, "is_busy", lambda: False)
        seconds[torch.bfloat16] = 0.5
        assert loaded() == torch.bfloat16
        assert raced == [torch.float32, torch.bfloat16] * 2
        assert loaded() == torch.bfloat16
        assert raced == []


@pytest.mark.parametrize(("load", "busy"), [(0.4, False), (3.9, True)])
def test_a_busy_machine_is_one_with_more_to_do_than_half_of_its_processors(
    monkeypatch: pytest.MonkeyPatch, load: float, busy: bool
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert machine.is_busy() is busy

    def nothing_told() -> tuple[float, float, float]:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", nothing_told)
    assert not machine.is_busy()
