"""A memory in RAM that has retrieval heads from the start. Arbitrary heads cost as much as the best ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import everlong
import everlong._core as _core
from everlong import IndexProfile
from everlong.models.attach import AttachedModel
from everlong.models.fingerprint import fingerprint
from everlong.retrieval.profile import FEWEST_PAGES, store_profile


@contextmanager
def calibrated_memory(
    served: AttachedModel, tokenizer: Any, config: everlong.MemoryConfig
) -> Iterator[everlong.Memory]:
    """Open an empty memory for this model, with `config.search.retrieval_heads` heads spread over the model."""
    prints = fingerprint(served, tokenizer)
    manifest = _core.Manifest(
        weights=prints.weights,
        rope=prints.rope,
        tokenizer=prints.tokenizer,
        layers=served.layers,
        kv_heads=served.kv_heads,
        head_dim=served.head_dim,
        page_tokens=config.archive.page_tokens,
        codec=config.archive.codec,
    )
    group, count = served.query_heads // served.kv_heads, config.search.retrieval_heads
    places = [(index * served.layers // count, index % served.kv_heads) for index in range(count)]
    heads = tuple((layer, kv_head * group, kv_head) for layer, kv_head in places)
    profile = IndexProfile(
        heads, config.search.query_distance, reciprocal_rank=1.0, pages=FEWEST_PAGES, quotes=64, seed=0
    )
    with everlong.Memory.open(None, create=manifest, host_bytes=config.archive.host_bytes) as memory:
        store_profile(memory.core, profile)
        yield memory
