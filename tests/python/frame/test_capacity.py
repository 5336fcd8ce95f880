"""Room for what is going to be read: on disk and in RAM, told before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlong import ArchiveConfig, MemoryConfig, MemoryModel
from everlong.errors import CapacityError
from everlong.frame.capacity import check_capacity
from support import byte_tokenizer, tiny_model
from support.capacity import MB, MODEL, disk_of, payload, ram_of


def test_what_is_asked_for_is_what_a_memory_takes() -> None:
    with MemoryModel(MODEL, byte_tokenizer()) as mm:
        mm.read("All of it is archived. " * 200)
        stats = mm.memory.stats()
        assert stats.payload_bytes == pytest.approx(payload(stats.tokens), rel=0.01)
        assert stats.tokens == 23 * 200


def test_disk_counts_the_codec_and_what_is_there_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = 100_000  # 22.5 MB, 23.6 with the catalog
    disk_of(monkeypatch, 24 * MB)
    check_capacity(MODEL, None, tokens, tmp_path / "new" / "memory")
    with pytest.raises(CapacityError, match=r"100,000 tokens .* need 40 MB of disk as bf16, .* has 24 MB.*folder"):
        check_capacity(MODEL, MemoryConfig(archive=ArchiveConfig(codec="bf16")), tokens, tmp_path)
    disk_of(monkeypatch, 10 * MB)
    with pytest.raises(CapacityError, match="need 24 MB of disk as e4m3"):
        check_capacity(MODEL, None, tokens, tmp_path)
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / "1").write_bytes(bytes(14 * MB))
    check_capacity(MODEL, None, tokens, tmp_path)


def test_layers_that_are_not_archived_take_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_of(monkeypatch, MB)
    with pytest.raises(CapacityError, match="need 16 MB of disk as e4m3"):  # two of four layers have a window
        check_capacity(tiny_model("gemma3", "nested"), None, 100_000, tmp_path)


def test_ram_holds_the_index_of_a_folder_and_all_of_a_memory_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = 100_000
    index = tokens * 1_024
    ram_of(monkeypatch, index + 1)
    check_capacity(MODEL, None, tokens, tmp_path)
    ram_of(monkeypatch, index - 1)
    with pytest.raises(CapacityError, match=r"need 102 MB of RAM for their index, .* fewer tokens"):
        check_capacity(MODEL, None, tokens, tmp_path)
    whole = index + payload(tokens)
    for free, given in ((2 * whole, None), (1, whole)):  # half of what is free, or what was set
        ram_of(monkeypatch, free)
        check_capacity(MODEL, MemoryConfig(archive=ArchiveConfig(host_bytes=given)), tokens, None)
    for free, given in ((2 * whole - 2, None), (10 * whole, whole - 1)):
        ram_of(monkeypatch, free)
        with pytest.raises(CapacityError, match=r"need 125 MB of RAM as e4m3, .* may take 125 MB: ask for less"):
            check_capacity(MODEL, MemoryConfig(archive=ArchiveConfig(host_bytes=given)), tokens, None, "less")
