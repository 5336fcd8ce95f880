"""Vectors of a block reach into the text before it. Where that is forgotten, they are made anew of what is there."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import everlong
from everlong.parts.encoder.at_work import MissingVectors
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
    return {name: tensor for name, tensor in tensors.items() if name.startswith(("encoder.", "sentence."))}


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
            alone.read(said)
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
        core, encoded, forgot = mm.memory.core, MissingVectors._encoded, []
        core.blocks.drop_tensors(behind, list(vectors_of(mm, behind)))

        def encoded_then_forgotten(self: MissingVectors, blocks: Any, closed: Any) -> Any:
            for made in encoded(self, blocks, closed):
                if not forgot:
                    forgot.append(mm.memory.forget([gone]))
                yield made

        monkeypatch.setattr(MissingVectors, "_encoded", encoded_then_forgotten)
        said = mm.text(behind)
        mm.searcher.settle()
        assert forgot == [1]
        with opened() as alone:
            alone.read(said)
            alone.searcher.settle()
            expected = vectors_of(alone, alone.memory.blocks()[0].id)
        made = vectors_of(mm, behind)
        assert made.keys() == expected.keys()
        for name, tensor in made.items():
            np.testing.assert_array_equal(tensor, expected[name])
