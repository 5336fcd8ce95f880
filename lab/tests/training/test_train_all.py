"""All parts of a pack in one run: in order, within a time, and a run that was cut short goes on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import everlong_lab.parts.kv_writer.train as kv_writer
from everlong.errors import EverlongError
from everlong.models.pack import Pack, PackPart, load_pack
from everlong.parts.trimmer.model import TrimmerNet, TrimmerSettings
from everlong_lab import part_list
from everlong_lab.cli import training
from everlong_lab.training import whole_pack
from everlong_lab.training.loop import LoopSettings
from everlong_lab.training.run import Run
from everlong_lab.training.whole_pack import ToTrain, in_the_making, train_parts
from support import tiny_model

PARTS = ("towers", "trigger", "trimmer", "writer", "kv-writer", "walker", "adapter", "retrieve")
Calls = list[tuple[str, float | None]]


@pytest.fixture
def calls() -> Calls:
    return []


def parts_that_note(calls: Calls, cut_at: str = "", **more: Any) -> list[ToTrain]:
    """Trainers that make a part of one number, and note that they were called, with how many minutes."""

    def trainer(name: str) -> Any:
        def train(run: Run, training: LoopSettings) -> dict[str, PackPart]:
            if name == cut_at:
                raise KeyboardInterrupt
            calls.append((name, training.minutes))
            run.work.mkdir(parents=True, exist_ok=True)
            return {name: PackPart({"a": torch.tensor([float(training.seed)])}, {"name": name}, {"minutes": 1})}

        return train

    return [ToTrain(name, LoopSettings(**more), trainer(name)) for name in PARTS]


def train(folder: Path, there: list[ToTrain], names: Any = PARTS, **more: Any) -> list[str]:
    return train_parts(tiny_model(), None, there, names, work=folder / "work", out=folder / "pack", **more)


def test_in_order_and_into_one_pack(calls: Calls, tmp_path: Path) -> None:
    assert train(tmp_path, parts_that_note(calls), ["trimmer", "towers", "trigger"]) == ["towers", "trigger", "trimmer"]
    assert [name for name, _ in calls] == ["towers", "trigger", "trimmer"]
    assert set(load_pack(tmp_path / "pack").parts) == {"towers", "trigger", "trimmer"}


def test_what_is_done_is_not_trained_again(calls: Calls, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, parts_that_note(calls, cut_at="trimmer"))
    assert [name for name, _ in calls] == ["towers", "trigger"]
    assert train(tmp_path, parts_that_note(calls)) == list(PARTS)
    assert [name for name, _ in calls] == list(PARTS)
    train(tmp_path, parts_that_note(calls))
    assert len(calls) == len(PARTS)
    train(tmp_path, parts_that_note(calls, seed=1), ["trigger"])  # of something else
    train(tmp_path, parts_that_note(calls, steps=5), ["towers"])
    assert [name for name, _ in calls[len(PARTS) :]] == ["trigger", "towers"]
    (tmp_path / "pack" / "pack.json").unlink()
    (tmp_path / "pack" / "trimmer.safetensors").unlink()
    with pytest.raises(ValueError, match="is no pack"):
        train(tmp_path, parts_that_note(calls), ["trimmer"])


def test_minutes_are_shared_by_those_that_are_left(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock: each part takes four minutes, whatever it was given."""
    monkeypatch.setattr(whole_pack.time, "monotonic", lambda: 240.0 * len(calls))
    said: list[str] = []
    trained = train(tmp_path, parts_that_note(calls), minutes=10, say=said.append)
    assert trained == ["towers", "trigger", "trimmer"]
    assert calls == [("towers", 10 / 8), ("trigger", pytest.approx(6 / 7)), ("trimmer", pytest.approx(2 / 6))]
    assert said[-3] == "walker: left out, as the time is over; the same command goes on"
    assert said[-2] == "adapter: left out, as the time is over; the same command goes on"
    assert said[-1] == "retrieve: left out, as the time is over; the same command goes on"


def test_an_unknown_part_is_refused(calls: Calls, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no part 'reader'"):
        train(tmp_path, parts_that_note(calls), ["reader"])
    assert calls == []


def test_the_kv_writer_s_trimmer_is_that_of_the_pack_in_the_making(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trimmer = TrimmerNet(TrimmerSettings((1, 2), 12, units=0))
    Pack("weights", "tiny", {"trimmer": trimmer.part({})}).save(tmp_path)
    other = TrimmerNet(TrimmerSettings((1, 2), 12, units=0)).part({})
    before = Pack("weights", "tiny", {"trimmer": other, "towers": other})
    making = in_the_making(before, tmp_path)
    assert making is not None
    found = TrimmerNet.of_part(making.parts["trimmer"])
    assert torch.equal(found.linear.weight, trimmer.linear.weight.bfloat16().float())
    assert making.parts["towers"].id == other.id
    with pytest.raises(EverlongError, match="train trimmer"):
        kv_writer.train(
            Run(tiny_model("llama"), None, tmp_path / "work", in_the_making(None, tmp_path / "none")),
            kv_writer.Training(),
        )


def test_a_part_is_given_what_was_made_before_it(calls: Calls, tmp_path: Path) -> None:
    given: list[list[str]] = []
    there = parts_that_note(calls)

    def noted(train: Any) -> Any:
        def also(run: Run, training: LoopSettings) -> Any:
            given.append(sorted(run.pack.parts) if run.pack is not None else [])
            return train(run, training)

        return also

    there = [dataclasses.replace(part, train=noted(part.train)) for part in there]
    train(tmp_path, there, ["towers", "trimmer", "kv-writer"])
    assert given == [[], ["towers"], ["towers", "trimmer"]]


def test_a_part_whose_training_cannot_be_imported_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    original = part_list.module

    def module(name: str, which: str) -> Any:
        if name == "trimmer":
            raise ModuleNotFoundError("No module named 'none_such'")
        return original(name, which)

    monkeypatch.setattr(part_list, "module", module)
    with pytest.warns(UserWarning, match="trimmer is not trained: No module named 'none_such'"):
        there, by_default = training.parts_to_train({}, "")
    assert "trimmer" not in {one.name for one in there}
    assert {"towers", "walker"} <= {one.name for one in there}
    assert set(by_default) <= {one.name for one in there}
