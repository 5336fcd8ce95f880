"""What a framework gets of a passage: its text, and where it stands, as values that JSON has."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from everlong.generation.memory_model import MemoryModel
from everlong.retrieval.recall import Recall

_TEXTS = ("text", "passage")


def citation(recall: Recall) -> dict[str, Any]:
    """Return all of a passage but its words: source, place, origin, score, confidence and the rest."""
    told = {name: value for name, value in dataclasses.asdict(recall).items() if name not in _TEXTS}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}


def cited(recall: Recall) -> str:
    """Return a passage below its source and place."""
    return "\n".join(filter(None, (", ".join(filter(None, (recall.source, recall.place))), recall.text.strip())))


def name_of(mm: MemoryModel) -> str:
    """Return the name of the memory's model, or its kind."""
    return str(getattr(mm.model, "name_or_path", "") or mm.model.config.model_type)


def words_of(pairs: Sequence[tuple[str, str]]) -> str:
    """Return turns of a conversation, each behind who said it."""
    return "\n\n".join(f"{who}: {said}" for who, said in pairs if said.strip())
