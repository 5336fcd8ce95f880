"""everlong: a memory of a million tokens and more for HuggingFace causal LMs."""

import importlib
from typing import TYPE_CHECKING

from everlong import _native, ops
from everlong.config import AnswerConfig, ArchiveConfig, FrameConfig, MemoryConfig, SearchConfig
from everlong.errors import (
    BrokenFrameError,
    CapacityError,
    ClosedError,
    CorruptMemoryError,
    DeviceMemoryError,
    EverlongError,
    MemoryBusyError,
    MemoryExistsError,
    MemoryGoneWarning,
    MemoryIOError,
    MemoryNotFoundError,
    ModelMismatchError,
    NewerFormatError,
    NotFiniteError,
    ReadOnlyMemoryError,
    UnsupportedModelError,
)
from everlong.memory import Block, Memory, MemoryStats
from everlong.memory.where import Where
from everlong.retrieval import index
from everlong.retrieval.profile import IndexProfile

if TYPE_CHECKING:
    from everlong.frame import part as part
    from everlong.generation import pipeline as pipeline
    from everlong.generation.answer import Answer
    from everlong.generation.memory_model import MemoryModel
    from everlong.generation.perplexity import Perplexity
    from everlong.generation.reading import ReadReport
    from everlong.models import rope as rope
    from everlong.retrieval import embedding as embedding
    from everlong.retrieval.recall import Recall
    from everlong.text import control as control
else:
    # Modules that import transformers, which takes as long as all the rest, load when first asked for (PEP 562). A
    # memory without a model and most of the command line do without them.
    _LATER = {
        "Answer": "generation.answer",
        "MemoryModel": "generation.memory_model",
        "Perplexity": "generation.perplexity",
        "ReadReport": "generation.reading",
        "Recall": "retrieval.recall",
    }

    # The other modules with a page of their own in docs/api, for `import everlong` alone, and where they stand.
    _MODULES = {
        "control": "text.control",
        "corpora": "corpora",
        "data": "data",
        "doctor": "doctor",
        "embedding": "retrieval.embedding",
        "eval": "eval",
        "models": "models",
        "part": "frame.part",
        "pictures": "pictures",
        "pipeline": "generation.pipeline",
        "rope": "models.rope",
    }

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{_MODULES[name]}")
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
        globals()[name] = found  # so that it is there the next time
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__version__ = _native.VERSION

__all__ = [
    "Answer",
    "AnswerConfig",
    "ArchiveConfig",
    "Block",
    "BrokenFrameError",
    "CapacityError",
    "ClosedError",
    "CorruptMemoryError",
    "DeviceMemoryError",
    "EverlongError",
    "FrameConfig",
    "IndexProfile",
    "Memory",
    "MemoryBusyError",
    "MemoryConfig",
    "MemoryExistsError",
    "MemoryGoneWarning",
    "MemoryIOError",
    "MemoryModel",
    "MemoryNotFoundError",
    "MemoryStats",
    "ModelMismatchError",
    "NewerFormatError",
    "NotFiniteError",
    "Perplexity",
    "ReadOnlyMemoryError",
    "ReadReport",
    "Recall",
    "SearchConfig",
    "UnsupportedModelError",
    "Where",
    "__version__",
    "index",
    "ops",
]
