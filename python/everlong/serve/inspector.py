"""What a memory holds, and finds, without a model: by the words of a question and by an encoder."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.memory import Memory
from everlong.memory.origins import split_reserved_tags
from everlong.memory.places import place_in
from everlong.memory.report import largest_topics, time_bars
from everlong.memory.sources import page_of_sources, sources
from everlong.memory.unfinished import unfinished_in
from everlong.memory.where import EVERYWHERE, Where
from everlong.retrieval.word_table import word_table
from everlong.service_data.errors import ApiError
from everlong.text.encoding import decode_text, encode
from everlong.text.notebook_html import CONVERSATION

_TOKENS = 4096  # the most that one search brings back
_TOPIC_LINES = 200


class MemoryInspector:
    """Looks into open memories. Thread-safe: the tokenizer is used by one thread at a time."""

    def __init__(self, tokenizer: Any, encoder: Any = None) -> None:
        """`encoder`: as in `SearchConfig.encoder`; None: words alone."""
        self._tokenizer, self._encoder = tokenizer, encoder
        self._lock = threading.Lock()

    def text(self, memory: Memory, block: int) -> str:
        """Return what a block says. MemoryNotFoundError where there is none."""
        info = memory.core.blocks.info(block)
        return self._decode(memory, info.stream, info.begin, info.end)

    def tokens(self, texts: Sequence[str]) -> int:
        """Return how many tokens texts have."""
        with self._lock:
            return sum(len(encode(self._tokenizer, text)) for text in texts)

    def passage(self, memory: Memory, block: int) -> dict[str, Any]:
        """Return a block with what stands before and behind it in its source."""
        info = memory.core.blocks.info(block)
        beside = [
            other
            for other in memory.core.blocks.infos(source=info.source)
            if other.stream == info.stream and split_reserved_tags(other.tags)[1] == split_reserved_tags(info.tags)[1]
        ]
        beside.sort(key=lambda other: other.begin)
        at = next(number for number, other in enumerate(beside) if other.id == info.id)
        before, behind = beside[max(0, at - 1) : at], beside[at + 1 : at + 2]
        return {
            "object": "memory.block",
            "id": info.id,
            "source": info.source or CONVERSATION,
            "place": place_in(info.tags, 0, info.end - info.begin),
            "role": info.role,
            "span": [info.begin, info.end],
            "text": self.text(memory, info.id),
            "before": "".join(self.text(memory, other.id) for other in before),
            "behind": "".join(self.text(memory, other.id) for other in behind),
        }

    def search(self, memory: Memory, question: str, most: int, where: Where = EVERYWHERE) -> list[dict[str, Any]]:
        """Return the passages nearest to a question, best first."""
        if not question.strip():
            raise ApiError(400, "query is empty", "missing_required_parameter", param="query")
        with self._lock:
            ids = encode(self._tokenizer, question).numpy().astype(np.int32)[:256]
            memory.core.index.set_words(table := word_table(self._tokenizer))
        kinds, vector = ["lexical" if table is None else "words"], None
        if self._encoder is not None:
            from everlong.text.vectors import encoder_name, vectors_of

            vector = vectors_of(self._encoder, [question])[0]
            memory.core.index.set_page_vectors(encoder_name(self._encoder), len(vector), "flat")
            if not memory.core.index.pages_without_vectors():
                kinds.append("embedding")
            else:
                vector = None
        found = memory.core.search.find(
            token_ids=ids, page_query=vector, kinds=kinds, max_groups=most, token_budget=_TOKENS, **where.core()
        )
        fields = []
        for group in found.groups:
            with contextlib.suppress(MemoryNotFoundError):  # forgotten meanwhile
                fields.append(self._result_fields(memory, group))
        return fields

    def sources(self, memory: Memory) -> list[dict[str, Any]]:
        """Return the sources of a memory."""
        return [dataclasses.asdict(one) for one in sources(memory)]

    def page_of_sources(self, memory: Memory, after: int, limit: int | None) -> dict[str, Any]:
        """Return a list of at most `limit` sources; `next` is what the next page comes after, null on the last one."""
        page, following = page_of_sources(memory, after, limit)
        return {"object": "list", "data": [dataclasses.asdict(one) for one in page], "next": following}

    def overview(self, memory: Memory) -> dict[str, Any]:
        """Return what the page shows of a memory: sizes, sources, times, topics, health."""
        blocks = memory.blocks()
        stats = dataclasses.asdict(memory.stats())
        return {
            "object": "memory",
            "model": memory.core.manifest().attributes.get("model", ""),
            "stats": stats,
            "sources": self.sources(memory),
            "timeline": time_bars(blocks),
            "topics": [{"name": name, "blocks": count} for name, count in largest_topics(memory, blocks)],
            "graph": graph_of(memory),
            "unfinished": [dataclasses.asdict(one) for one in unfinished_in(memory)],
        }

    def _result_fields(self, memory: Memory, group: _core.FoundGroup) -> dict[str, Any]:
        page = group.pages[int(np.argmax(group.page_scores))]
        info = memory.core.blocks.info(page.block)
        return {
            "block_id": page.block,
            "source": info.source or CONVERSATION,
            "place": place_in(info.tags, page.begin - info.begin, page.end - info.begin),
            "role": info.role,
            "span": [group.begin, group.end],
            "score": group.score,
            "confidence": group.confidence,
            "found_by": list(group.found_by),
            "passage": self._decode(memory, page.stream, page.begin, page.end),
            "text": self._decode(memory, group.stream, group.begin, group.end),
        }

    def _decode(self, memory: Memory, stream: int, begin: int, end: int) -> str:
        ids: Sequence[int] = memory.core.blocks.token_ids(stream, begin, end).tolist()
        with self._lock:
            return decode_text(self._tokenizer, ids)


def graph_of(memory: Memory) -> dict[str, Any]:
    """Return the topics of a memory's graph and how they hang together; empty where none was grown."""
    graph = memory.graph
    names = graph.names()
    topics = sorted(graph.nodes("topic"), key=lambda node: -node.count)[:_TOPIC_LINES]
    shown = {node.id for node in topics}
    links = [[edge.source, edge.target] for edge in graph.edges() if edge.source in shown and edge.target in shown]
    return {
        "nodes": [
            {"id": node.id, "name": names.get(node.id, ""), "blocks": node.count, "level": node.level}
            for node in topics
        ],
        "links": links,
    }
