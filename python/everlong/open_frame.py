"""The frame of a model, by how it is served."""

from __future__ import annotations

from typing import Any

from everlong.attach import ServedModel
from everlong.config import MemoryConfig
from everlong.frame import Frame
from everlong.kv_frame import KvFrame
from everlong.memory import Memory
from everlong.text_frame import TextFrame
from everlong.text_model import TextModel


def open_frame(served: ServedModel | TextModel, memory: Memory, config: MemoryConfig, tokenizer: Any) -> Frame:
    """Over the memory's stream, where it ended; `Frame.detach` takes it off the model again."""
    if isinstance(served, TextModel):
        return TextFrame(served, memory, config, tokenizer)
    return KvFrame(served, memory, config, tokenizer)
