"""everlong: a memory of a million tokens and more for HuggingFace causal LMs."""

from everlong import _native, index, ops
from everlong.config import MemoryConfig
from everlong.errors import (
    BrokenFrameError,
    CapacityError,
    ClosedError,
    CorruptMemoryError,
    EverlongError,
    MemoryBusyError,
    MemoryExistsError,
    MemoryIOError,
    MemoryNotFoundError,
    ModelMismatchError,
    NewerFormatError,
    ReadOnlyMemoryError,
    UnsupportedModelError,
)
from everlong.memory import Block, Memory, MemoryStats
from everlong.model import Answer, MemoryModel, ReadReport
from everlong.perplexity import Perplexity
from everlong.profile import IndexProfile
from everlong.recall import Recall
from everlong.where import Where

__version__ = _native.VERSION

__all__ = [
    "Answer",
    "Block",
    "BrokenFrameError",
    "CapacityError",
    "ClosedError",
    "CorruptMemoryError",
    "EverlongError",
    "IndexProfile",
    "Memory",
    "MemoryBusyError",
    "MemoryConfig",
    "MemoryExistsError",
    "MemoryIOError",
    "MemoryModel",
    "MemoryNotFoundError",
    "MemoryStats",
    "ModelMismatchError",
    "NewerFormatError",
    "Perplexity",
    "ReadOnlyMemoryError",
    "ReadReport",
    "Recall",
    "UnsupportedModelError",
    "Where",
    "__version__",
    "index",
    "ops",
]
