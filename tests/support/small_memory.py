"""Memories of a few blocks in a folder, for tests that change the folder's files and rows."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import everlong._core as core

LAYERS, KV_HEADS, HEAD_DIM, PAGE = 1, 1, 16, 64


def manifest(layers: int = LAYERS) -> core.Manifest:
    return core.Manifest(
        weights="w",
        rope="r",
        tokenizer="t",
        layers=layers,
        kv_heads=KV_HEADS if layers else 0,
        head_dim=HEAD_DIM if layers else 0,
        page_tokens=PAGE,
        codec="fp32",
    )


def append(memory: core.Memory, begin: int, ids: np.ndarray | None = None, layers: int = LAYERS) -> int:
    """Append 64 tokens."""
    payload = np.zeros(memory.page_bytes(PAGE) if layers else 0, np.uint8)
    return memory.blocks.append(
        stream=0,
        begin=begin,
        end=begin + PAGE,
        sink_tokens=0,
        source="",
        created_at=1.0,
        tags=[],
        token_ids=np.arange(begin, begin + PAGE, dtype=np.int32) if ids is None else ids,
        payload=payload,
        tensors={},
    )


def saved(folder: Path, blocks: int = 2, layers: int = LAYERS) -> Path:
    memory = core.Memory.create(str(folder), manifest(layers), 0)
    for block in range(blocks):
        append(memory, block * PAGE, layers=layers)
    memory.put_file("note", b"hi")
    memory.upkeep.flush()
    memory.index.save()
    memory.close()
    return folder


@contextlib.contextmanager
def opened(folder: Path, read_only: bool = False) -> Iterator[core.Memory]:
    memory = core.Memory.open(str(folder), read_only, 0)
    try:
        yield memory
    finally:
        memory.close()
