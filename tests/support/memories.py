"""Memories with a tiny model."""

from __future__ import annotations

from pathlib import Path

from everlong import MemoryConfig, MemoryModel
from everlong.generation.answer_generator import AnswerGenerator
from support.models import tiny_model
from support.settings import SMALL
from support.tokenizer import byte_tokenizer


def open_model(
    folder: Path | None = None, config: MemoryConfig = SMALL, *, kind: str = "llama", rope: str = "default"
) -> MemoryModel:
    """Open the memory in `folder`, or a new one in RAM, with a tiny model and the byte tokenizer."""
    return MemoryModel(tiny_model(kind, rope), byte_tokenizer(), folder, config=config)


def answering_of(mm: MemoryModel) -> AnswerGenerator:
    """Return a generator of answers beside the model's own: its prompts are those that `mm.generate` makes."""
    return AnswerGenerator(mm.frame, mm.searcher, mm.tokenizer)
