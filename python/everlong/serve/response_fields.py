"""An answer as OpenAI's clients read it: usage, citations as annotations, and a field of everlong's own."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from everlong.generation.answer import is_unsure
from everlong.retrieval.recall import Recall
from everlong.serve.answering import AnswerResult
from everlong.text.notebook_html import CONVERSATION


def link_of(memory: str, one: Recall) -> str | None:
    """Return where the block of a passage can be read; None for a turn of a conversation, which has no address."""
    return f"/v1/memories/{quote(memory)}/blocks/{one.block_id}" if memory and one.role == "read" else None


def everlong_field(memory: str, answer: AnswerResult) -> dict[str, Any]:
    """Return the field `everlong`: what came back, and how sure the memory is."""
    return {
        "memory": memory or None,
        "confidence": answer.confidence,
        "unsure": is_unsure(answer.confidence),
        "tokens_read": answer.read,
        "tokens_known": answer.known,
        "recall": [_recall_of(memory, one) for one in answer.recalled],
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
        "used": one.used,
        "passage": one.passage,
        "text": one.text,
    }


def citations_of(memory: str, answer: AnswerResult) -> list[dict[str, Any]]:
    """Return title and address of what came back and the model had: the whole answer rests on each."""
    return [
        {
            "start_index": 0,
            "end_index": len(answer.text),
            "title": ", ".join(filter(None, (one.source or CONVERSATION, one.place))),
            "url": link,
        }
        for one in answer.recalled
        if one.used and (link := link_of(memory, one)) is not None
    ]


def finish_of(answer: AnswerResult) -> str:
    """Return why it ended, in OpenAI's words."""
    return "stop" if answer.finish == "stop" else "length"
