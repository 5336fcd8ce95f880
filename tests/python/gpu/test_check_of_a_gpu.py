"""gpu/check, rehearsed on the CPU: every stage runs to its end, and what fails, dies or takes too long is told."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from support import REPOSITORY

GPU = REPOSITORY / "gpu"


def script(name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(name, str(GPU / name))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


CHECK = script("check")
SLOW = 1234


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The check over stages of this test's own: files written to the folder, 20 seconds each."""
    folder = tmp_path / "gpu"
    (folder / "stages").mkdir(parents=True)
    for shared in ("__init__.py", "__main__.py", "check.py"):
        (folder / "stages" / shared).symlink_to(GPU / "stages" / shared)
    monkeypatch.setattr(CHECK, "HERE", folder)
    return folder / "stages"


def run(monkeypatch: pytest.MonkeyPatch, results: Path, limits: dict[str, float], *options: str) -> int:
    monkeypatch.setattr(CHECK, "STAGES", limits)
    monkeypatch.setattr(sys, "argv", ["check", str(results), "--device", "cpu", *options])
    return int(CHECK.main())


def result(results: Path, stage: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((results / f"{stage}.json").read_text())
    return told


@pytest.mark.slow
@pytest.mark.parametrize("stage", CHECK.STAGES)
def test_a_stage_passes_on_the_cpu(stage: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [sys.executable, str(GPU / "check"), str(tmp_path), "--device", "cpu", "--only", stage]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + (tmp_path / "log.txt").read_text()[-4000:]
    told = result(tmp_path, stage)
    assert told["finished"]
    assert len(told["cases"]) + len(told["figures"]) > 1
    assert [case["name"] for case in told["cases"] if case["error"]] == []


@pytest.mark.slow
def test_a_case_that_fails_ends_nothing(stages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (stages / "first.py").write_text(
        "def run(check):\n"
        "    with check.case('one'):\n"
        "        assert 1 == 2, 'one is not two'\n"
        "    with check.case('other'):\n"
        "        check.figure('ratio', 0.5, wanted='>= 0.85')\n"
    )
    (stages / "second.py").write_text("def run(check):\n    check.tell('device', str(check.device))\n")
    results = tmp_path / "results"
    assert run(monkeypatch, results, {"first": 60, "second": 60}) == 1
    first = result(results, "first")
    assert {case["name"]: bool(case["error"]) for case in first["cases"]} == {
        "one": True,
        "other": False,
        "stage": False,
    }
    assert "one is not two" in first["cases"][0]["error"]
    assert first["figures"][0] | {"met": False, "wanted": ">= 0.85"} == first["figures"][0]
    assert result(results, "second")["told"] == {"device": "cpu"}
    assert run(monkeypatch, results, {"first": 60, "second": 60}, "--from", "second") == 0


@pytest.mark.slow
def test_what_a_cut_or_dead_stage_had_is_kept(stages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = "def run(check):\n    with check.case('begun'):\n        pass\n"
    (stages / "slow.py").write_text(begun + "    import time\n    time.sleep(600)\n")
    (stages / "dies.py").write_text(begun + "    import os\n    os.abort()\n")
    results = tmp_path / "results"
    wait = subprocess.Popen.wait

    def until_begun(stage: subprocess.Popen[Any], timeout: float | None = None) -> int:
        if timeout == SLOW:  # the limit has passed, but not before there was something to keep
            file = results / "slow.json"
            while not file.is_file() or "begun" not in file.read_text():
                time.sleep(0.05)
            raise subprocess.TimeoutExpired("slow", SLOW)
        return wait(stage, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", until_begun)
    assert run(monkeypatch, results, {"slow": SLOW, "dies": 300}) == 1
    for stage in ("slow", "dies"):
        told = result(results, stage)
        assert not told["finished"]
        assert [case["name"] for case in told["cases"]] == ["begun"]


def test_a_stage_that_there_is_not_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, {"first": 1}, "--only", "second")


def test_the_page_shows_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sys.path.insert(0, str(GPU))
    try:
        from stages.check import Check
    finally:
        sys.path.remove(str(GPU))
    check = Check("speed", tmp_path / "speed.json", torch.device("cpu"), small=True, seconds=60)
    with check.case("kept"):
        pass
    with check.case("broken"):
        raise ValueError("a | b")
    check.figure("archive_kv", 0.9, "of a copy", wanted=">= 0.85")
    check.figure("restore_kv", 0.5, "of a copy", wanted=">= 0.85")
    for name, share, speed in (("one", 0.9, 12.0), ("two", 0.8, 11.0)):
        check.figure(f"{name}: of a copy", share, wanted=">= 0.85")
        check.figure(f"{name}: times eager", speed)
    check.tell("Rows", [{"model": "tiny", "ms": 1.25}])
    assert not check.finish()
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path), "--page", str(page)])
    script("report").main()
    text = page.read_text()
    assert "| archive_kv | 0.9 of a copy | >= 0.85, met |" in text
    assert "| restore_kv | 0.5 of a copy | >= 0.85, **not met** |" in text
    assert "|  | of a copy (>= 0.85 wanted) | times eager |" in text
    assert "| one | 0.9 | 12 |" in text
    assert "| two | 0.8, **not met** | 11 |" in text
    assert "| tiny | 1.25 |" in text
    assert "1 of 2 checks held." in text
    assert "* broken: `ValueError: a | b`" in text
    page.write_text(text.replace("## Speed\n", "## Speed\n\nHow fast is it?\n").replace("| tiny | 1.25 |", "| old |"))
    script("report").main()
    assert page.read_text() == text.replace("## Speed\n", "## Speed\n\nHow fast is it?\n")
