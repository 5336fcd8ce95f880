"""A memory in a folder, whatever several threads do to it at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.core_stress import Folder, at_once, stressed


@pytest.mark.parametrize("rounds", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_all_that_happens_to_a_folder_happens_at_once(rounds: int, tmp_path: Path) -> None:
    stressed(tmp_path, 4, rounds)


def test_an_error_that_is_nobody_s_doing_is_told(tmp_path: Path) -> None:
    def fail(rng: np.random.Generator, thread: int) -> None:
        raise AssertionError("wrong")

    with pytest.raises(AssertionError, match="wrong"):
        at_once([*Folder(tmp_path).calls, fail], 2, 1)
