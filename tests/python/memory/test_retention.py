"""A memory keeps to a size and an age: the oldest sources go, and nothing else."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from everlong import MemoryConfig, MemoryModel
from everlong.memory.retention import retire
from everlong.memory.sources import sources
from support import TINY_MEMORY, byte_tokenizer, changed, random_text, tiny_model


def opened(folder: Path | None, config: MemoryConfig) -> MemoryModel:
    return MemoryModel(tiny_model(), byte_tokenizer(), folder, config)


def names(mm: MemoryModel) -> list[str]:
    return [source.name for source in sources(mm.memory)]


@pytest.mark.parametrize("in_ram", [True, False])
def test_the_oldest_sources_go_where_there_is_no_room(
    in_ram: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = None if in_ram else tmp_path / "m"
    most = 1_200_000 if not in_ram else 500_000
    with opened(folder, changed(TINY_MEMORY, max_bytes=most)) as mm:
        gone: list[str] = []
        for number in range(8):
            report = mm.read(random_text(400, seed=number), source=f"text {number}")
            gone += report.let_go
            stats = mm.memory.stats()
            assert (stats.payload_bytes if in_ram else stats.disk_bytes) <= most
            assert names(mm)[-1] == f"text {number}"
        assert gone
        assert gone + names(mm) == [f"text {number}" for number in range(8)]
        assert mm.memory.stats().dead_bytes == 0
        assert mm.memory.verify().damage == ()
    assert "let its oldest sources go: text 0" in caplog.text


def test_the_newest_source_stays_however_large(tmp_path: Path) -> None:
    with opened(tmp_path / "m", changed(TINY_MEMORY, max_bytes=1)) as mm:
        assert mm.read(random_text(900), source="large").let_go == ()
        assert mm.read(random_text(900, seed=1), source="larger").let_go == ("large",)
        assert names(mm) == ["larger"]


def test_old_sources_go_for_their_age_and_a_source_is_as_old_as_its_newest_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(None, TINY_MEMORY) as mm:
        for name in ("old", "both"):
            mm.read(random_text(200, seed=len(name)), source=name)
        time.sleep(0.05)
        middle = datetime.datetime.now(datetime.UTC)
        mm.read(random_text(200, seed=9), source="both", again=True)
        mm.read(random_text(200, seed=10), source="new")
        # The clock stands still, so that the age is that of this moment when the sources are looked at.
        now = datetime.datetime.now(datetime.UTC)
        still = SimpleNamespace(now=lambda zone: now)
        clock = SimpleNamespace(UTC=datetime.UTC, timedelta=datetime.timedelta, datetime=still)
        monkeypatch.setattr("everlong.memory.retention.datetime", clock)
        assert retire(mm.memory, None, (now - middle).total_seconds()) == ("old",)
        assert sorted(names(mm)) == ["both", "new"]


def test_turns_of_a_conversation_go_one_by_one() -> None:
    with opened(None, TINY_MEMORY) as mm:
        mm.read(random_text(300), source="kept")
        for number in range(4):
            mm.generate(f"What of {number}?", 4)
        turns = mm.memory.blocks("")
        bytes_ = mm.memory.stats().payload_bytes
        assert retire(mm.memory, bytes_ - 1, None) == ("kept",)
        assert retire(mm.memory, mm.memory.stats().payload_bytes - 1, None) == ("",)
        assert mm.memory.blocks("") == turns[1:]


@pytest.mark.parametrize("setting", [{"max_bytes": 0}, {"keep_for": 0}, {"keep_for": -1.0}, {"max_bytes": -5}])
def test_no_size_and_no_age_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected above 0"):
        changed(TINY_MEMORY, **setting)
