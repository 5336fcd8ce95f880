"""The frame of a model, by how it is served."""

from __future__ import annotations

from typing import Any

from everlong.config import MemoryConfig
from everlong.frame.frame import Frame
from everlong.frame.kept_writing import AnchorWriter, TombstoneWriter
from everlong.frame.kv_frame import KvFrame
from everlong.frame.text_frame import TextFrame
from everlong.frame.topics import TopicEnds
from everlong.frame.trimming import TokenScorer
from everlong.memory import Memory
from everlong.models.attach import ServedModel
from everlong.models.text_model import TextModel


def open_frame(
    served: ServedModel | TextModel,
    memory: Memory,
    config: MemoryConfig,
    tokenizer: Any,
    topic_ends: TopicEnds | None = None,
    token_scorer: TokenScorer | None = None,
    kept_writer: AnchorWriter | None = None,
    tombstone_writer: TombstoneWriter | None = None,
) -> Frame:
    """Over the memory's stream, where it ended; `Frame.detach` takes it off the model again.

    A frame of text alone computes no states while it reads: it hears of no `topic_ends`, and keeps no
    tokens of what leaves it.
    """
    if isinstance(served, TextModel):
        return TextFrame(served, memory, config, tokenizer)
    return KvFrame(served, memory, config, tokenizer, topic_ends, token_scorer, kept_writer, tombstone_writer)
