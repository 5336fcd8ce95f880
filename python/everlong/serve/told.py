"""An answer as OpenAI's clients read it: usage, citations as annotations, and a field of everlong's own."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from everlong.generation.answer import is_unsure
from everlong.retrieval.recall import Recall
from everlong.serve.asking import Said
from everlong.text.notebook import CONVERSATION


def link_of(memory: str, one: Recall) -> str | None:
    """Return where the block of a passage can be read; None for a turn of a conversation, which has no address."""
    return f"/v1/memories/{quote(memory)}/blocks/{one.block_id}" if memory and one.role == "read" else None


def everlong_of(memory: str, said: Said) -> dict[str, Any]:
    """Return the field `everlong`: what came back, and how sure the memory is."""
    return {
        "memory": memory or None,
        "confidence": said.confidence,
        "unsure": is_unsure(said.confidence),
        "tokens_read": said.read,
        "tokens_known": said.known,
        "recall": [_recall_of(memory, one) for one in said.recalled],
    }


def _recall_of(memory: str, one: Recall) -> dict[str, Any]:
    return {
        "block_id": one.block_id,
        "url": link_of(memory, one),
        "source": one.source or CONVERSATION,
        "place": one.place,
        "role": one.role,
        "span": list(one.span),
        "score": one.score,
        "confidence": one.confidence,
        "found_by": list(one.found_by),
        "told": one.told,
        "passage": one.passage,
        "text": one.text,
    }


def citations_of(memory: str, said: Said) -> list[dict[str, Any]]:
    """Return title and address of what came back: the whole answer rests on each."""
    return [
        {
            "start_index": 0,
            "end_index": len(said.text),
            "title": ", ".join(filter(None, (one.source or CONVERSATION, one.place))),
            "url": link,
        }
        for one in said.recalled
        if (link := link_of(memory, one)) is not None
    ]


def finish_of(said: Said) -> str:
    """Return why it ended, in OpenAI's words."""
    return "stop" if said.finish == "stop" else "length"
