"""Native memories whose blocks carry vectors of meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import everlong._core as _core

# Tokens a page, tokens a vector, numbers a vector.
PAGE, GROUP, DIM = 64, 4, 16
PACK = "pack"
TENSOR = f"meaning.{PACK}"
LENGTHS = [160, 64, 1, 100, 130, 65, 300]  # tokens of the blocks, in order
NO_TOKENS = np.zeros(0, dtype=np.int32)


def vectors_of(tokens: int) -> int:
    """Return how many vectors a block of `tokens` tokens has."""
    full, rest = divmod(tokens, PAGE)
    return full * (PAGE // GROUP) + -(-rest // GROUP)


def codes_for(tokens: int, rng: np.random.Generator) -> Any:
    """Return random vectors int8 [vectors, DIM] for a block of `tokens` tokens."""
    return rng.integers(-127, 128, (vectors_of(tokens), DIM), dtype=np.int8)


def new_memory(folder: Path | None, codes: list[Any]) -> _core.Memory:
    """Make a memory of text alone with blocks of LENGTHS. A block gets its vectors unless they are None."""
    manifest = _core.Manifest(
        weights="", rope="", tokenizer="", layers=0, kv_heads=0, head_dim=0, page_tokens=PAGE, codec="bf16"
    )
    memory = _core.Memory.create(None if folder is None else str(folder), manifest)
    for tokens, of_block in zip(LENGTHS, codes, strict=True):
        begin = memory.blocks.stream_end(0)
        memory.blocks.append(
            stream=0,
            begin=begin,
            end=begin + tokens,
            sink_tokens=0,
            source="",
            created_at=0,
            tags=[],
            token_ids=np.zeros(tokens, dtype=np.int32),
            payload=np.zeros(0, dtype=np.uint8),
            tensors={} if of_block is None else {TENSOR: of_block},
        )
    memory.upkeep.flush()
    return memory
