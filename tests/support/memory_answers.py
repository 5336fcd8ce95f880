"""What a memory answers, as plain JSON. It was recorded once, and later releases must answer the same."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

# Retrieval heads as (layer, head, KV head).
HEADS = [(0, 0, 0), (1, 3, 1), (0, 1, 0)]
VECTOR = 6  # dimension of the page vectors


def turn_on(core: Any) -> None:
    """Turn on every index, and give random vectors to pages that have none."""
    if not core.manifest().text_alone:
        core.index.set_retrieval_heads(HEADS)
    core.index.set_page_vectors("random", VECTOR)
    for block in sorted({page.block for page in core.index.pages_without_vectors()}):
        pages = np.array(
            [page.page for page in core.index.pages_without_vectors() if page.block == block], dtype=np.int32
        )
        vectors = np.random.default_rng(block).standard_normal((len(pages), VECTOR)).astype(np.float32)
        core.index.add_page_vectors(block, pages, vectors)


def queries(head_dim: int, kv_heads: int) -> dict[str, Any]:
    """Return what every search asks with."""
    rng = np.random.default_rng(7)
    return {
        "token_ids": rng.integers(0, 60, 4).astype(np.int32),
        "head_queries": rng.standard_normal((4, len(HEADS), head_dim)).astype(np.float32),
        "mean_query": rng.standard_normal(kv_heads * head_dim).astype(np.float32),
        "page_query": rng.standard_normal(VECTOR).astype(np.float32),
    }


def found(core: Any, kinds: list[str], asked: dict[str, Any], **filters: Any) -> list[dict[str, Any]]:
    """Return the groups that a search by `kinds` finds."""
    result = core.search.find(kinds=kinds, max_groups=3, neighbours=1, token_budget=60, stream=7, **asked, **filters)
    return [
        {
            "pages": [[page.block, page.page, page.stream, page.begin, page.end] for page in group.pages],
            "source": group.source,
            "score": group.score,
        }
        for group in result.groups
    ]


def answers(core: Any) -> dict[str, Any]:
    """Return all that `core` answers. Its indexes must be on (see `turn_on`), or it must be of text alone."""
    manifest = core.manifest()
    blocks = []
    for block in core.blocks.infos():
        pages = [page for page in core.blocks.pages() if page.block == block.id]
        payload = np.zeros(0, dtype=np.uint8)
        if not manifest.text_alone:
            payload = np.zeros(sum(core.page_bytes(page.end - page.begin) for page in pages), dtype=np.uint8)
            core.blocks.read_pages(pages, payload)
        blocks.append(
            {
                "id": block.id,
                "stream": block.stream,
                "span": [block.begin, block.end],
                "sink_tokens": block.sink_tokens,
                "source": block.source,
                "created_at": block.created_at,
                "tags": list(block.tags),
                "pages": block.pages,
                "token_ids": core.blocks.token_ids(block.stream, block.begin, block.end).tolist(),
                "payload_bytes": len(payload),
                "payload_crc32": zlib.crc32(payload.tobytes()),
            }
        )
    asked = queries(manifest.head_dim, manifest.kv_heads)
    if manifest.text_alone:
        kinds = [["lexical"], ["lexical", "embedding"]]
        asked = {name: asked[name] for name in ("token_ids", "page_query")}
    else:
        kinds = [["heads"], ["lexical"], ["mean_pool"], ["hnsw"], ["embedding"], ["heads", "lexical"]]
    file = core.file("frame")
    return {
        "blocks": blocks,
        "stream_ends": [core.blocks.stream_end(stream) for stream in (0, 1)],
        "attributes": dict(core.manifest().attributes),
        "file_crc32": None if file is None else zlib.crc32(file),
        "searches": {"+".join(names): found(core, names, asked) for names in kinds},
        "filtered": found(core, ["lexical"], {"token_ids": asked["token_ids"]}, tags=["a"], sources=["letters"]),
    }
