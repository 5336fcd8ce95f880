"""A memory of two texts of the same words, each with a key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import everlong
from support import TINY_MEMORY, byte_tokenizer, tiny_model

FILLER = "once upon a time there was a fox, and so on. "


@pytest.fixture(name="mm")
def a_memory() -> Iterator[everlong.MemoryModel]:
    """Two texts of the same words, each with a key."""
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=TINY_MEMORY) as mm:
        mm.read(FILLER * 20 + "The key is Zq7#Kx9. " + FILLER * 20, source="first")
        mm.read(FILLER * 20 + "The code is Vw4%Jy8. " + FILLER * 20, source="second")
        yield mm
