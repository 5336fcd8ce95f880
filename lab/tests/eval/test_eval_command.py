"""`everlong eval SUITE`: what the command gives the suite beside what is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from everlong_lab.cli import evidence
from everlong_lab.eval import niah, ppl, suite
from everlong_lab.eval.answers import AnswerFile
from support import byte_tokenizer, tiny_model


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
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(suite, "run_suite", run)
    monkeypatch.setattr(niah, "run_niah", run)
    return dtypes


def run_in(folder: Path) -> None:
    command = get_command(evidence.eval_app)
    typed = ["vt", "--model", "tiny", "--baseline", "window", "--quick", "--out", str(folder)]
    command(typed, standalone_mode=False)


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


@pytest.mark.parametrize(
    "suite_of", [["niah", "--tokens", "1000", "--keep"], ["vt", "--quick", "--out"], ["ppl", "--out"]]
)
def test_where_and_how_a_model_computes_and_is_asked_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suite_of: list[str]
) -> None:
    loaded: list[dict[str, Any]] = []

    def load(_: str, dtype: str | None = None, **given: Any) -> tuple[Any, Any]:
        loaded.append({"dtype": dtype, **given})
        return tiny_model(), byte_tokenizer()

    def run(_: Any, config: Any, *rest: Any, **given: Any) -> None:
        raise GivenError(config)

    monkeypatch.setattr("everlong.models.load", load)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for module, name in ((suite, "run_suite"), (niah, "run_niah"), (ppl, "run_ppl")):
        monkeypatch.setattr(module, name, run)
    for file in (niah.READ_AS, suite.FILE, ppl.FILE):
        AnswerFile(tmp_path / file, {"dtype": "float32"})
    command = get_command(evidence.eval_app)
    named = ["--device", "cuda:1", "--dtype", "float16"]
    variables = [] if "ppl" in suite_of else ["--chat-template-kwargs", '{"enable_thinking": false}']
    with pytest.raises(GivenError) as given:
        command([*suite_of, str(tmp_path), *named, *variables], standalone_mode=False)
    assert loaded == [{"dtype": "float16", "device_map": "cuda:1"}]
    if variables:
        assert given.value.args[0].chat_template_kwargs == {"enable_thinking": False}
        with pytest.raises(ValueError, match="--chat-template-kwargs is no JSON"):
            command([*suite_of, str(tmp_path), "--chat-template-kwargs", "{"], standalone_mode=False)
    assert len(loaded) == 1, "what is wrong is told before a model is loaded"


@pytest.mark.usefixtures("asked_for")
def test_reading_shows_its_progress(tmp_path: Path) -> None:
    with pytest.raises(GivenError) as given:
        run_in(tmp_path)
    assert given.value.args[0]["progress"] is True


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
