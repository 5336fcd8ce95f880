"""Blocks written straight into the native core's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

import everlong._core as _core

# The shape of the memories that `manifest` describes, and some of their heads as (layer, head, KV head).
LAYERS, KV_HEADS, DIM, PAGE = 2, 2, 8, 4
HEADS = [(1, 3, 1), (0, 0, 0), (1, 2, 1)]


def manifest(**changes: Any) -> _core.Manifest:
    """Return the manifest of a memory of this shape, with `changes` of its fields."""
    fields: dict[str, Any] = {
        "weights": "w",
        "rope": "r",
        "tokenizer": "t",
        "layers": LAYERS,
        "kv_heads": KV_HEADS,
        "head_dim": DIM,
        "page_tokens": PAGE,
        "codec": "fp32",
    }
    return _core.Manifest(**(fields | changes))


class Written:
    """A random block, kept as it was written: ids [T], keys and values [layers, Hkv, T, D]. Keys have length 5."""

    def __init__(self, rng: np.random.Generator, stream: int, begin: int, tokens: int, source: str) -> None:
        self.stream, self.begin, self.end, self.source = stream, begin, begin + tokens, source
        self.ids = rng.integers(0, 50, tokens).astype(np.int32)
        keys = rng.standard_normal((LAYERS, KV_HEADS, tokens, DIM))
        self.keys = (5 * keys / np.linalg.norm(keys, axis=-1, keepdims=True)).astype(np.float32)
        self.values = rng.standard_normal(self.keys.shape).astype(np.float32)

    def payload(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the block's payload in the layout of cpp/kv/include/everlong/kv/payload.h for codec fp32."""
        parts = []
        for page in range(0, self.end - self.begin, PAGE):
            for layer in range(LAYERS):
                parts += [x[layer, :, page : page + PAGE].tobytes() for x in (self.keys, self.values)]
        return np.frombuffer(b"".join(parts), dtype=np.uint8)

    def append_to(self, memory: _core.Memory, **changes: Any) -> int:
        """Append the block and return its id. `changes` are arguments of `append`."""
        fields: dict[str, Any] = {
            "stream": self.stream,
            "begin": self.begin,
            "end": self.end,
            "sink_tokens": 0,
            "source": self.source,
            "created_at": 12.5,
            "tags": ["x"],
            "token_ids": self.ids,
            "payload": self.payload(),
        }
        return memory.blocks.append(**(fields | changes))


def fill(memory: _core.Memory, blocks: int = 8, tokens: int = 10) -> list[Written]:
    """Append `blocks` blocks of `tokens` tokens, by turns to streams 0 and 1, and return them."""
    rng = np.random.default_rng(1)
    written = [Written(rng, i % 2, i // 2 * tokens, tokens, "even" if i % 2 == 0 else "odd") for i in range(blocks)]
    assert [block.append_to(memory) for block in written] == list(range(1, blocks + 1))
    return written
