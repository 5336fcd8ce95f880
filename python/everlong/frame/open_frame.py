"""Opens the frame of a model, by how the model is served."""

from __future__ import annotations

from typing import Any

from everlong.config import MemoryConfig
from everlong.frame.frame import Frame
from everlong.frame.kv_frame import KvFrame
from everlong.frame.parts import Parts
from everlong.frame.text_frame import TextFrame
from everlong.memory import Memory
from everlong.models.attach import AttachedModel
from everlong.models.text_model import TextModel


def open_frame(
    served: AttachedModel | TextModel, memory: Memory, config: MemoryConfig, tokenizer: Any, parts: Parts
) -> Frame:
    """Open a frame over the memory's stream, where it ended. `Frame.detach` takes its hooks off the model again."""
    if isinstance(served, TextModel):
        return TextFrame(served, memory, config, tokenizer, parts)
    return KvFrame(served, memory, config, tokenizer, parts)
