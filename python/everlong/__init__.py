"""everlong: a memory of a million tokens and more for any HuggingFace causal LM."""

import importlib.metadata

from everlong import _native

_native.check_torch()

from everlong import ops  # noqa: E402
from everlong.calibrate import IndexProfile  # noqa: E402
from everlong.config import MemoryConfig  # noqa: E402
from everlong.errors import (  # noqa: E402
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
from everlong.memory import Block, Memory, MemoryStats  # noqa: E402
from everlong.model import Answer, MemoryModel, Perplexity, ReadReport  # noqa: E402
from everlong.recall import Recall  # noqa: E402

__version__ = importlib.metadata.version("everlong")

__all__ = [
    "Answer",
    "Block",
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
    "__version__",
    "ops",
]
