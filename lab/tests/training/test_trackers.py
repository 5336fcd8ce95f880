"""The figures of a training go to a tracker, too."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from everlong.errors import EverlongError
from everlong_lab.training.trackers import reporting, require_tracker


@dataclasses.dataclass(frozen=True)
class Training:
    steps: int = 4
    text: tuple[str, ...] = ("a",)


def test_tensorboard_has_every_figure(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told: list[tuple[int, dict[str, float]]] = []
    with reporting("tensorboard", "towers", tmp_path, Training(), lambda *said: told.append(said)) as check:
        assert check is not None
        for step in (0, 2, 4):
            check(step, {"step": step, "minutes": 0.5, "held out": 1 / (step + 1)})
    assert [step for step, _ in told] == [0, 2, 4]
    files = sorted((tmp_path / "tensorboard").rglob("events*"), key=lambda file: len(file.parts))
    events = EventAccumulator(str(files[0].parent))  # settings lie in a folder below
    events.Reload()
    assert [(one.step, round(one.value, 4)) for one in events.Scalars("held out")] == [(0, 1.0), (2, 0.3333), (4, 0.2)]
    assert "step" not in events.Tags()["scalars"]


def test_without_a_tracker_only_the_terminal_is_told(tmp_path: Path) -> None:
    with reporting("", "towers", tmp_path, Training(), None) as check:
        assert check is None
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tracker_and_a_missing_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="there are tensorboard, wandb, trackio"):
        require_tracker("paper")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EverlongError, match="pip install wandb"):
        require_tracker("wandb")
