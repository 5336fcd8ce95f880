"""A memory of random keys and vectors of meaning, and what its indexes say of a question."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong import ops

PAGE, INDEX_TOKENS, KV_HEADS = 64, 64 * 37 + 5, 2
HEADS = [(0, 0, 0), (0, 1, 0), (0, 2, 1), (0, 3, 1), (0, 4, 1)]
MEANING_DIM, GROUP, PACK = 128, 4, "check"


def index_memory(head_dim: int, rng: np.random.Generator) -> tuple[_core.Memory, torch.Tensor, Any]:
    """Return a memory of random keys [Hkv, T, D] in bf16 and vectors of meaning int8 [n, MEANING_DIM], and both."""
    manifest = _core.Manifest(
        weights="",
        rope="",
        tokenizer="",
        layers=1,
        kv_heads=KV_HEADS,
        head_dim=head_dim,
        page_tokens=PAGE,
        codec="bf16",
    )
    memory = _core.Memory.create(None, manifest)
    keys = torch.from_numpy(rng.standard_normal((KV_HEADS, INDEX_TOKENS, head_dim), dtype=np.float32)).bfloat16()
    codes = rng.integers(-127, 128, (-(-INDEX_TOKENS // GROUP), MEANING_DIM), dtype=np.int8)
    memory.blocks.append(
        stream=0,
        begin=0,
        end=INDEX_TOKENS,
        sink_tokens=0,
        source="",
        created_at=0,
        tags=[],
        token_ids=np.arange(INDEX_TOKENS, dtype=np.int32) % 50,
        payload=ops.encode_kv(keys[None], torch.zeros_like(keys)[None], PAGE, "bf16").numpy(),
        tensors={f"meaning.{PACK}": codes},
    )
    return memory, keys, codes


def page_scores(memory: _core.Memory, part: str, **question: Any) -> dict[int, float]:
    """Return the score of every page alone, by its first token."""
    rankings = memory.search.rankings(1000, kinds=[part], **question)
    (ranking,) = (one for one in rankings if one.granularity == "page")
    return {page.begin: score for page, score in zip(ranking.pages, ranking.scores, strict=True)}
