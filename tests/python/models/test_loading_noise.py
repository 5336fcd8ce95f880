"""What is said on standard error while a model is loaded without a terminal: everything but progress bars."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from everlong.models import load


def test_what_loading_says_is_heard(
    saved_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = transformers.AutoModelForCausalLM.from_pretrained

    def speaking(*given: Any, **named: Any) -> Any:
        print("this checkpoint lacks a file that it should have", file=sys.stderr)
        return whole(*given, **named)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", speaking)
    load(str(saved_model), "float32")
    assert capsys.readouterr().err == "this checkpoint lacks a file that it should have\n"


@pytest.mark.parametrize("drawn", [True, False])
def test_progress_bars_are_as_they_were_before(
    saved_model: Path, drawn: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    bars = transformers.utils.logging
    (bars.enable_progress_bar if drawn else bars.disable_progress_bar)()
    try:
        load(str(saved_model), "float32")
        assert bars.is_progress_bar_enabled() is drawn
    finally:
        bars.enable_progress_bar()
    assert capsys.readouterr().err == ""
