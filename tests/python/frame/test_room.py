"""Room for what is going to be read: on disk and in RAM, told before anything is read."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from everlong import ArchiveConfig, MemoryConfig, MemoryModel
from everlong.errors import CapacityError
from everlong.eval import demo, niah, ppl
from everlong.frame import room
from everlong.frame.room import check_room
from support import byte_tokenizer, tiny_model

MODEL = tiny_model()
MB = 1_000_000


def payload(tokens: int) -> int:
    """As e4m3: a byte a number, four for each token's values and six for each channel of a page's keys."""
    layers, kv_heads, head_dim, pages = 3, 2, 16, math.ceil(tokens / 64)
    return layers * kv_heads * (2 * head_dim * tokens + 6 * pages * head_dim + 4 * tokens)


def test_what_is_asked_for_is_what_a_memory_takes() -> None:
    with MemoryModel(MODEL, byte_tokenizer()) as mm:
        mm.read("All of it is archived. " * 200)
        stats = mm.memory.stats()
        assert stats.payload_bytes == pytest.approx(payload(stats.tokens), rel=0.01)
        assert stats.tokens == 23 * 200


def disk_of(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(room.shutil, "disk_usage", lambda path: usage._replace(free=free))


def ram_of(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(room._core, "free_memory_bytes", lambda: free)


def test_disk_counts_the_codec_and_what_is_there_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = 100_000  # 22.5 MB, 23.6 with the catalog
    disk_of(monkeypatch, 24 * MB)
    check_room(MODEL, None, tokens, tmp_path / "new" / "memory")
    with pytest.raises(CapacityError, match=r"100,000 tokens .* need 40 MB of disk as bf16, .* has 24 MB.*folder"):
        check_room(MODEL, MemoryConfig(archive=ArchiveConfig(codec="bf16")), tokens, tmp_path)
    disk_of(monkeypatch, 10 * MB)
    with pytest.raises(CapacityError, match="need 24 MB of disk as e4m3"):
        check_room(MODEL, None, tokens, tmp_path)
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / "1").write_bytes(bytes(14 * MB))
    check_room(MODEL, None, tokens, tmp_path)


def test_layers_that_are_not_archived_take_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_of(monkeypatch, MB)
    with pytest.raises(CapacityError, match="need 16 MB of disk as e4m3"):  # two of four layers have a window
        check_room(tiny_model("gemma3", "nested"), None, 100_000, tmp_path)


def test_ram_holds_the_index_of_a_folder_and_all_of_a_memory_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = 100_000
    index = tokens * 1_024
    ram_of(monkeypatch, index + 1)
    check_room(MODEL, None, tokens, tmp_path)
    ram_of(monkeypatch, index - 1)
    with pytest.raises(CapacityError, match=r"need 102 MB of RAM for their index, .* fewer tokens"):
        check_room(MODEL, None, tokens, tmp_path)
    whole = index + payload(tokens)
    for free, given in ((2 * whole, None), (1, whole)):  # half of what is free, or what was set
        ram_of(monkeypatch, free)
        check_room(MODEL, MemoryConfig(archive=ArchiveConfig(host_bytes=given)), tokens, None)
    for free, given in ((2 * whole - 2, None), (10 * whole, whole - 1)):
        ram_of(monkeypatch, free)
        with pytest.raises(CapacityError, match=r"need 125 MB of RAM as e4m3, .* may take 125 MB: ask for less"):
            check_room(MODEL, MemoryConfig(archive=ArchiveConfig(host_bytes=given)), tokens, None, "less")


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
