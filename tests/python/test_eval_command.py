"""`everlong eval SUITE`: what the command gives the suite beside what is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.main import get_command

from everlong.cli import evidence
from everlong.eval import niah, suite
from everlong.eval.answers import AnswerFile
from tiny_models import byte_tokenizer, tiny_model


class GivenError(Exception):
    """Ends a run before it begins, with what it was given."""


@pytest.fixture(name="asked_for")
def dtypes_that_a_model_was_loaded_in(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """A run ends before it begins, with what it was given."""
    dtypes: list[str | None] = []

    def load(_: str, dtype: str | None = None) -> tuple[Any, Any]:
        dtypes.append(dtype)
        return tiny_model(), byte_tokenizer()

    def run(*_: Any, **given: Any) -> None:
        raise GivenError(given)

    monkeypatch.setattr("everlong.models.load", load)
    monkeypatch.setattr(suite, "run_suite", run)
    monkeypatch.setattr(niah, "run_niah", run)
    return dtypes


def run_in(folder: Path) -> None:
    evidence.run_and_report(
        "vt",
        model="tiny",
        settings=(),
        baselines=("window",),
        lengths="",
        count=0,
        quick=True,
        out=folder,
        plot=False,
        seed=0,
        corpus=None,
        as_json=False,
    )


def test_a_needle_goes_on_in_the_dtype_that_it_began_in(tmp_path: Path, asked_for: list[str | None]) -> None:
    command = get_command(evidence.eval_app)

    def ask(*keep: str) -> None:
        with pytest.raises(GivenError):
            command(["niah", "--tokens", "1000", *keep], standalone_mode=False)

    ask()
    ask("--keep", str(tmp_path))
    AnswerFile(tmp_path / "reading.jsonl", {"dtype": "float32"})
    ask("--keep", str(tmp_path))
    assert asked_for == [None, None, "float32"]


@pytest.mark.usefixtures("asked_for")
@pytest.mark.parametrize("terminal", [True, False])
def test_reading_shows_its_progress_where_there_is_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(evidence, "Console", lambda **how: Console(force_terminal=terminal, **how))
    with pytest.raises(GivenError) as given:
        run_in(tmp_path)
    assert given.value.args[0]["progress"] is terminal


def test_a_run_goes_on_in_the_dtype_that_it_began_in(tmp_path: Path, asked_for: list[str | None]) -> None:
    with pytest.raises(GivenError):
        run_in(tmp_path)
    (tmp_path / "answers.jsonl").write_text('{"settings": {"dtype"')  # cut short in its first line
    with pytest.raises(GivenError):
        run_in(tmp_path)
    (tmp_path / "answers.jsonl").unlink()
    AnswerFile(tmp_path / "answers.jsonl", {"dtype": "float32"})
    with pytest.raises(GivenError):
        run_in(tmp_path)
    assert asked_for == [None, None, "float32"]
