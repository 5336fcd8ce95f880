"""`everlong eval SUITE`: what the command gives the suite beside what is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from everlong.cli import evidence
from everlong.eval import suite
from tiny_models import byte_tokenizer, tiny_model


class GivenError(Exception):
    """Ends a run before it begins, with what it was given."""


@pytest.mark.parametrize("terminal", [True, False])
def test_reading_shows_its_progress_where_there_is_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    def run(*_: Any, **given: Any) -> None:
        raise GivenError(given)

    monkeypatch.setattr("everlong.models.load", lambda name: (tiny_model(), byte_tokenizer()))
    monkeypatch.setattr(suite, "run_suite", run)
    monkeypatch.setattr(evidence, "Console", lambda **how: Console(force_terminal=terminal, **how))
    with pytest.raises(GivenError) as given:
        evidence.run_and_report(
            "vt",
            model="tiny",
            settings=(),
            baselines=("window",),
            lengths="",
            count=0,
            quick=True,
            out=tmp_path,
            plot=False,
            seed=0,
            corpus=None,
            as_json=False,
        )
    assert given.value.args[0]["progress"] is terminal
