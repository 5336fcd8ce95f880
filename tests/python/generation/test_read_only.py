"""A memory that was opened for reading, under a model: it answers, and nothing of that is kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import everlong
from support import SMALL, byte_tokenizer, random_text, tiny_model

CONFIG = SMALL.changed(search={"index": ("lexical",)})
TEXT = random_text(1500)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m", CONFIG) as mm:
        mm.read(TEXT)
    return tmp_path / "m"


def test_a_conversation_goes_on_and_leaves_nothing_behind(folder: Path) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, CONFIG) as mm:
        expected = mm.generate(TEXT[300:330], max_new_tokens=4, remember=False)
    with everlong.Memory.open(folder, read_only=True) as memory:
        before = memory.stats()
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), memory, CONFIG) as mm:
            begin = mm.stream_tokens
            assert mm.generate(TEXT[300:330], max_new_tokens=4) == expected
            said = mm.stream_tokens
            assert said == begin + 34
            # Much longer than a block, than rolling, and than what a frame holds.
            for first in range(0, 1200, 300):
                answer = mm.generate(TEXT[first : first + 300], max_new_tokens=100)
                assert answer.tokens == 100
                assert all(recall.span[1] <= begin for recall in answer.recalled)
            assert mm.stream_tokens == said + 4 * 400
            assert len(mm.recall(TEXT[300:330])) > 0
        # What it read is still in RAM.
        cached = {"host_bytes": before.host_bytes, "catalog_bytes": before.catalog_bytes}
        after = dataclasses.replace(memory.stats(), **cached)
        assert after == before


def test_nothing_is_read_into_it(folder: Path) -> None:
    with (
        everlong.Memory.open(folder, read_only=True) as memory,
        everlong.MemoryModel(tiny_model(), byte_tokenizer(), memory, CONFIG) as mm,
    ):
        with pytest.raises(everlong.ReadOnlyMemoryError, match="opened for reading"):
            mm.read("more")
        assert mm.stream_tokens == len(TEXT)
        assert mm.generate("and then", max_new_tokens=2).tokens == 2


def test_a_memory_in_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    home = f"~/{folder.name}"
    assert everlong.Memory.exists(home)
    with everlong.Memory.open(home, read_only=True) as memory:
        assert memory.path == str(folder)
        assert memory.stats().tokens == len(TEXT)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), home, CONFIG) as mm:
        assert mm.stream_tokens == len(TEXT)
    assert not Path("~").exists()


def test_whether_there_is_one_is_told_without_opening_it(tmp_path: Path, folder: Path) -> None:
    assert everlong.Memory.exists(folder)
    assert everlong.Memory.exists(str(folder))
    assert not everlong.Memory.exists(tmp_path)
    assert not everlong.Memory.exists(tmp_path / "missing")
    (folder / "manifest.json").write_text("no manifest")  # damaged, and there all the same
    assert everlong.Memory.exists(folder)
    with pytest.raises(everlong.CorruptMemoryError):
        everlong.Memory.open(folder)
