"""Commands that are made from dataclasses: of everlong's parts, and of a part that another package brings."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from everlong.cli.app import app

_IMPORTED = """
import sys
from everlong.cli import main
try:
    main()
finally:
    there = [name for name in sys.modules if name.startswith(("everlong.parts.", "other_package.", "transformers"))]
    print(*sorted(there), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [("train",), ("eval",), ("train", "all")])
def test_help_imports_no_part(site: pathlib.Path, command: tuple[str, ...]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    run = [sys.executable, "-c", _IMPORTED, *command, "--help"]
    done = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("typed", "instead"),
    [
        (["train", "dnii", "memory"], "`everlong train dnii` has another name now: `everlong train router`"),
        (["eval", "meaning"], "`everlong eval meaning` has another name now: `everlong eval towers`"),
        (["eval", "tombstones", "--writer"], "`everlong eval tombstones --writer` has another name now: `--kv-writer`"),
    ],
)
def test_what_was_renamed_says_what_took_its_place(typed: list[str], instead: str) -> None:
    result = CliRunner().invoke(app, typed)
    assert str(result.exception) == instead
