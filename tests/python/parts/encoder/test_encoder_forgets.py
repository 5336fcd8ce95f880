"""Vectors of a block reach into the text before it. Where that is forgotten, they are made anew of what is there."""

from __future__ import annotations

import contextlib
import pathlib
from typing import Any

import numpy as np
import pytest

import everlong
from everlong.errors import MemoryIOError, MemoryNotFoundError
from everlong.memory import Memory
from everlong.memory.overlapping_vectors import drop_vectors, overlapping_blocks
from everlong.parts.encoder.runtime import VectorBackfill
from support import SMALL, byte_tokenizer, tiny_model
from support.parts.encoder import use_tiny_encoder
from support.texts import random_words

CONFIG = SMALL.changed(search={"index": ("lexical", "encoder")})


@pytest.fixture(autouse=True)
def encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_encoder(monkeypatch)


def opened(folder: Any = None) -> everlong.MemoryModel:
    return everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, config=CONFIG)


def vectors_of(mm: everlong.MemoryModel, block: int) -> dict[str, np.ndarray[Any, Any]]:
    tensors = mm.memory.core.blocks.tensors(block)
    return {name: tensor for name, tensor in tensors.items() if name.startswith(("encoder.", "sentence.", "passage."))}


def words(seed: int) -> str:
    """Return words in one long sentence, so that each block's first one begins in the block before."""
    return random_words(500, seed)


def test_a_neighbour_is_encoded_anew(tmp_path: pathlib.Path) -> None:
    with opened(tmp_path / "m") as mm:
        mm.read(words(1), "text")
        mm.read(words(2), "other")
        mm.searcher.settle()
        before, gone, behind = (block.id for block in mm.memory.blocks("text")[:3])
        (first_of_other, *_) = mm.memory.blocks("other")
        kept = {block: vectors_of(mm, block) for block in (before, behind, first_of_other.id)}
        assert all(kept.values())
        said = mm.text(behind)
        mm.memory.forget([gone])
        assert vectors_of(mm, behind) == {}
        assert vectors_of(mm, before).keys() == kept[before].keys()
        assert vectors_of(mm, first_of_other.id).keys() == kept[first_of_other.id].keys()
        mm.memory.compact()
        old = kept[behind][next(iter(kept[behind]))].tobytes()
        assert not any(old in file.read_bytes() for file in (tmp_path / "m").rglob("*") if file.is_file())
        assert mm.recall(said[20:60])  # it waits for the vectors
        anew = vectors_of(mm, behind)
        assert anew.keys() == kept[behind].keys()
        with opened() as alone:
            alone.read(said, "text")
            alone.searcher.settle()
            expected = vectors_of(alone, alone.memory.blocks()[0].id)
        differs = False
        for name, tensor in anew.items():
            np.testing.assert_array_equal(tensor, expected[name])
            differs = differs or not np.array_equal(tensor, kept[behind][name])
        assert differs  # they did reach into what was forgotten


def test_what_was_made_meanwhile_of_what_is_gone_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text before a block is forgotten between the look at it and the storing of its vectors."""
    with opened() as mm:
        mm.read(words(1), "text")
        mm.searcher.settle()
        gone, behind = (block.id for block in mm.memory.blocks("text")[:2])
        core, encoded, forgot = mm.memory.core, VectorBackfill._encoded, []
        core.blocks.drop_tensors(behind, list(vectors_of(mm, behind)))

        def encoded_then_forgotten(self: VectorBackfill, blocks: Any, closed: Any) -> Any:
            for made in encoded(self, blocks, closed):
                if not forgot:
                    forgot.append(mm.memory.forget([gone]))
                yield made

        monkeypatch.setattr(VectorBackfill, "_encoded", encoded_then_forgotten)
        said = mm.text(behind)
        mm.searcher.settle()
        assert forgot == [1]
        with opened() as alone:
            alone.read(said, "text")
            alone.searcher.settle()
            expected = vectors_of(alone, alone.memory.blocks()[0].id)
        made = vectors_of(mm, behind)
        assert made.keys() == expected.keys()
        for name, tensor in made.items():
            np.testing.assert_array_equal(tensor, expected[name])


def left_in(folder: pathlib.Path, vectors: dict[str, np.ndarray[Any, Any]]) -> list[str]:
    needles = [tensor.tobytes() for tensor in vectors.values()]
    return [file.name for file in folder.rglob("*") if file.is_file() and any(n in file.read_bytes() for n in needles)]


@pytest.mark.parametrize("then", ["compact", "open", "import", "fork"])
@pytest.mark.parametrize("cut", ["killed", "refused", "the neighbour goes", "another forgets"])
def test_a_forgetting_that_is_cut_short_is_ended_later(
    cut: str, then: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    with opened(folder) as mm:
        mm.read(words(1) + words(2), "text")
        mm.searcher.settle()
        ids = [block.id for block in mm.memory.blocks("text")]
        old = vectors_of(mm, ids[4])
    forgotten = [ids[1], ids[3]]

    def cut_short(core: Any, blocks: Any) -> None:
        monkeypatch.setattr("everlong.memory.memory.drop_vectors", drop_vectors)
        if cut == "refused":
            raise MemoryIOError("no space left on the disk")
        if cut == "killed":
            raise KeyboardInterrupt
        gone = blocks[0] if cut == "the neighbour goes" else ids[-1]
        core.blocks.forget([gone])
        drop_vectors(core, blocks)

    memory = Memory.open(folder)
    monkeypatch.setattr("everlong.memory.memory.drop_vectors", cut_short)
    with contextlib.suppress(KeyboardInterrupt):
        memory.forget(forgotten)
    assert not {block.id for block in memory.blocks()} & set(forgotten)
    if then == "compact":
        memory.compact()
        memory.close()
    else:
        if cut in ("killed", "refused"):
            assert left_in(folder, old)
        memory.close()
    if then == "import":
        with Memory.open(folder, read_only=True) as reading:
            reading.export(tmp_path / "file")
        folder = tmp_path / "imported"
        Memory.import_file(tmp_path / "file", folder).close()
    elif then == "fork":
        with Memory.open(folder, read_only=True) as reading:
            folder = tmp_path / "fork"
            reading.fork(folder).close()
    with Memory.open(folder) as memory:
        assert not [
            name
            for name in memory.core.blocks.tensors(ids[4])
            if name.startswith(("encoder.", "sentence.", "passage."))
        ]
        memory.compact()
    assert left_in(folder, old) == []


def test_vectors_that_were_made_anew_stay(tmp_path: pathlib.Path) -> None:
    """Over a memory's whole life each block behind a gap is encoded once."""
    with opened(tmp_path / "m") as mm:
        mm.read(words(1), "text")
        mm.searcher.settle()
        ids = [block.id for block in mm.memory.blocks("text")]
        mm.memory.forget([ids[1]])
        mm.memory.forget([ids[-1]])
    with opened(tmp_path / "m") as mm:
        mm.searcher.settle()
        mm.memory.compact()
        made = vectors_of(mm, ids[2])
        assert made
    with Memory.open(tmp_path / "m") as memory:
        memory.compact()
        assert memory.core.blocks.tensors(ids[2]).keys() >= made.keys()


def test_blocks_go_by_name_while_others_forget_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as mm:
        mm.read(words(1), "text")
        ids = [block.id for block in mm.memory.blocks("text")]

        def another_was_first(core: Any, gone: Any) -> list[int]:
            monkeypatch.setattr("everlong.memory.memory.overlapping_blocks", overlapping_blocks)
            core.blocks.forget([ids[0]])
            return overlapping_blocks(core, gone)

        monkeypatch.setattr("everlong.memory.memory.overlapping_blocks", another_was_first)
        assert mm.memory.forget(source="text") == len(ids) - 1
        assert mm.memory.blocks("text") == []
        with pytest.raises(MemoryNotFoundError):
            mm.memory.forget([ids[0]])
