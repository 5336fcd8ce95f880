"""All parts of a pack in one run: in order, within a time, and a run that was cut short goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from everlong.errors import EverlongError
from everlong.models.pack import Pack, PackPart, load_pack
from everlong.parts.trimmer.model import Trimmer, TrimmerSettings
from everlong.training import all_parts
from everlong.training.all_parts import PARTS, Sizes, train_parts
from tiny_models import tiny_model

Calls = list[tuple[str, float | None]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Trainers that make a part of one number, and note that they were called, with how many minutes."""
    made: Calls = []

    def trainer(name: str) -> Any:
        def train(model: Any, *given: Any, training: Any, work: Path, **more: Any) -> Pack:
            if model == f"no {name}":
                raise KeyboardInterrupt
            made.append((name, training.minutes))
            work.mkdir(parents=True, exist_ok=True)
            part = PackPart({"a": torch.tensor([float(training.seed)])}, {"name": name}, {"minutes": 1})
            return Pack("weights", "tiny", {name: part})

        return train

    for name in PARTS:
        monkeypatch.setattr(all_parts, f"train_{name.replace('-', '_')}", trainer(name))
    made_of = ("load_pairs", "books_of", "trigger_texts", "trim_texts", "evicted_texts", "told_of_both", "trimmer_for")
    for name in made_of:
        monkeypatch.setattr(all_parts, name, lambda *given, **more: None)
    for name in ("draw_walk_texts", "frame_texts"):
        monkeypatch.setattr(all_parts, name, lambda *given, **more: [])
    return made


def train(folder: Path, parts: Any = PARTS, model: str = "", **more: Any) -> list[str]:
    return train_parts(model, None, parts, text=(), data=(), work=folder / "work", out=folder / "pack", **more)


def test_in_order_and_into_one_pack(calls: Calls, tmp_path: Path) -> None:
    assert train(tmp_path, ["trimmer", "towers", "trigger"]) == ["towers", "trigger", "trimmer"]
    assert [name for name, _ in calls] == ["towers", "trigger", "trimmer"]
    assert set(load_pack(tmp_path / "pack").parts) == {"towers", "trigger", "trimmer"}


def test_what_is_done_is_not_trained_again(calls: Calls, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, model="no trimmer")
    assert [name for name, _ in calls] == ["towers", "trigger"]
    assert train(tmp_path) == list(PARTS)
    assert [name for name, _ in calls] == list(PARTS)
    train(tmp_path)
    assert len(calls) == len(PARTS)
    train(tmp_path, ["trigger"], seed=1)  # of something else
    train(tmp_path, ["towers"], sizes=Sizes(tower_steps=5))
    assert [name for name, _ in calls[len(PARTS) :]] == ["trigger", "towers"]
    (tmp_path / "pack" / "pack.json").unlink()
    (tmp_path / "pack" / "trimmer.safetensors").unlink()
    with pytest.raises(ValueError, match="is no pack"):
        train(tmp_path, ["trimmer"], seed=0)


def test_minutes_are_shared_by_those_that_are_left(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock: each part takes four minutes, whatever it was given."""
    monkeypatch.setattr(all_parts.time, "monotonic", lambda: 240.0 * len(calls))
    said: list[str] = []
    assert train(tmp_path, minutes=10, say=said.append) == ["towers", "trigger", "trimmer"]
    assert calls == [("towers", 10 / 8), ("trigger", pytest.approx(6 / 7)), ("trimmer", pytest.approx(2 / 6))]
    assert said[-3] == "walker: left out, the time is over; the same command goes on"
    assert said[-2] == "adapter: left out, the time is over; the same command goes on"
    assert said[-1] == "retrieve: left out, the time is over; the same command goes on"


def test_an_unknown_part_is_refused(calls: Calls, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no part 'reader'"):
        train(tmp_path, ["reader"])
    assert calls == []


def test_the_kv_writer_s_trimmer_is_that_of_the_pack_in_the_making(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trimmer = Trimmer(TrimmerSettings((1, 2), 12, units=0))
    Pack("weights", "tiny", {"trimmer": trimmer.part({})}).save(tmp_path)
    found = all_parts.trimmer_for(None, tmp_path)
    assert torch.equal(found.linear.weight, trimmer.linear.weight.bfloat16().float())
    with pytest.raises(EverlongError, match="train trimmer"):
        all_parts.trimmer_for(tiny_model("llama"), tmp_path / "none")
