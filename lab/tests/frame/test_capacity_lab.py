"""Room for what is going to be read: on disk and in RAM, told before anything is read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from everlong import MemoryModel
from everlong.errors import CapacityError
from everlong_lab.eval import demo, niah, ppl
from support import byte_tokenizer
from support.capacity import MB, MODEL, disk_of, payload, ram_of


@pytest.fixture
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: MemoryModel, *_: Any, **__: Any) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(MemoryModel, "read", read)


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize("kept", [True, False])
def test_niah_tells_before_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    disk_of(monkeypatch, MB)
    ram_of(monkeypatch, 20 * MB)
    config = niah.NiahConfig(tokens=20_000, facts_per_kind=1)
    with pytest.raises(CapacityError, match="of disk" if kept else "of RAM as e4m3"):
        niah.run_niah((MODEL, byte_tokenizer()), config, keep=tmp_path / "kept" if kept else None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("nothing_is_read")
def test_perplexity_tells_before_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ppl.PplConfig(prefix_tokens=1_000, places=8, places_per_book=3, between_tokens=500, scored_tokens=64)
    assert config.tokens_per_book == 2_000
    assert dataclasses.replace(config, places=1).tokens_per_book == 1_000
    ram_of(monkeypatch, 2 * (2_000 * 1_024 + payload(2_000)))  # enough for e4m3, and not for bf16
    with pytest.raises(CapacityError, match=r"2,000 tokens .* as bf16, .* shorter prefixes"):
        ppl.run_ppl((MODEL, byte_tokenizer()), config)


def test_the_demo_tells_before_it_removes_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "load", lambda name: (MODEL, byte_tokenizer()))
    monkeypatch.setattr(demo, "measure_pace", lambda *_: demo.Pace(1.0, 1.0, 1.0))
    with MemoryModel(MODEL, byte_tokenizer(), tmp_path / "books.everlong") as mm:
        mm.read("An earlier demo left this. " * 100)
    disk_of(monkeypatch, MB)
    with pytest.raises(CapacityError, match=r"of disk .* fewer --tokens"):
        demo.run_demo(tokens=100_000, out=tmp_path)
    with MemoryModel(MODEL, byte_tokenizer(), tmp_path / "books.everlong") as mm:
        assert mm.stream_tokens == 2_700
