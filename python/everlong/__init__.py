"""everlong: a memory of a million tokens and more for HuggingFace causal LMs."""

import importlib
import sys
from typing import TYPE_CHECKING

from everlong import _native

if TYPE_CHECKING:
    from everlong import ops as ops
    from everlong.config import AnswerConfig, ArchiveConfig, FrameConfig, MemoryConfig, SearchConfig
    from everlong.errors import (
        BrokenFrameError,
        CapacityError,
        ClosedError,
        ControlTokenError,
        CorruptMemoryError,
        DeviceMemoryError,
        EverlongError,
        MemoryBusyError,
        MemoryExistsError,
        MemoryGoneWarning,
        MemoryIOError,
        MemoryNotFoundError,
        ModelMismatchError,
        MostFilesGoneError,
        NewerFormatError,
        NotFiniteError,
        ReadOnlyMemoryError,
        UnsupportedModelError,
    )
    from everlong.frame import part as part
    from everlong.generation import pipeline as pipeline
    from everlong.generation.answer import Answer
    from everlong.generation.memory_model import MemoryModel
    from everlong.generation.multi_memory import generate_many
    from everlong.generation.perplexity import Perplexity
    from everlong.generation.reading import ReadReport
    from everlong.generation.sync import SyncReport
    from everlong.memory import Block, Memory, MemoryStats
    from everlong.memory.where import Where
    from everlong.models import rope as rope
    from everlong.retrieval import embedding as embedding
    from everlong.retrieval import index
    from everlong.retrieval.profile import IndexProfile
    from everlong.retrieval.recall import Recall
    from everlong.text import control as control
else:
    # Every name loads when it is first asked for (PEP 562): torch and transformers take seconds. Most of the command
    # line, and a memory without a model, do without them.
    _LATER = {
        "config": ["AnswerConfig", "ArchiveConfig", "FrameConfig", "MemoryConfig", "SearchConfig"],
        "errors": [
            *("BrokenFrameError", "CapacityError", "ClosedError", "ControlTokenError", "CorruptMemoryError"),
            *("DeviceMemoryError", "EverlongError", "MemoryBusyError", "MemoryExistsError", "MemoryGoneWarning"),
            *("MemoryIOError", "MemoryNotFoundError", "ModelMismatchError", "MostFilesGoneError", "NewerFormatError"),
            *("NotFiniteError", "ReadOnlyMemoryError", "UnsupportedModelError"),
        ],
        "generation.answer": ["Answer"],
        "generation.memory_model": ["MemoryModel"],
        "generation.perplexity": ["Perplexity"],
        "generation.reading": ["ReadReport"],
        "generation.multi_memory": ["generate_many"],
        "generation.sync": ["SyncReport"],
        "memory": ["Block", "Memory", "MemoryStats"],
        "memory.where": ["Where"],
        "retrieval.profile": ["IndexProfile"],
        "retrieval.recall": ["Recall"],
    }
    _MODULE_OF = {name: module for module, names in _LATER.items() for name in names}

    # Modules with a page of their own in docs/api, for `import everlong` alone, and where they stand.
    _MODULES = {
        "control": "text.control",
        "data": "data",
        "doctor": "doctor",
        "embedding": "retrieval.embedding",
        "errors": "errors",
        "index": "retrieval.index",
        "integrations": "integrations",
        "models": "models",
        "ops": "ops",
        "part": "frame.part",
        "pictures": "pictures",
        "pipeline": "generation.pipeline",
        "rope": "models.rope",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES and name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        _native.check_core(_native.PACKAGE)
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{_MODULES[name]}")
        found = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = found  # so that it is there the next time
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

    if "torch" in sys.modules:  # what torch knows of everlong, it knows from the import on
        _native.load_ops(_native.check_core(_native.PACKAGE))


__version__ = _native.VERSION

__all__ = [
    "Answer",
    "AnswerConfig",
    "ArchiveConfig",
    "Block",
    "BrokenFrameError",
    "CapacityError",
    "ClosedError",
    "ControlTokenError",
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
    "MostFilesGoneError",
    "NewerFormatError",
    "NotFiniteError",
    "Perplexity",
    "ReadOnlyMemoryError",
    "ReadReport",
    "Recall",
    "SearchConfig",
    "SyncReport",
    "UnsupportedModelError",
    "Where",
    "__version__",
    "generate_many",
    "index",
    "ops",
]
