"""everlong: a memory of a million tokens and more for HuggingFace causal LMs."""

import importlib
from typing import TYPE_CHECKING

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
from everlong.profile import IndexProfile
from everlong.where import Where

if TYPE_CHECKING:
    from everlong.model import Answer, MemoryModel, ReadReport
    from everlong.perplexity import Perplexity
    from everlong.recall import Recall
else:
    # What imports transformers, which takes as long as all the rest, is imported when it is first asked for (PEP 562):
    # a memory without a model and most of the command line go without it.
    _LATER = {
        "Answer": "model",
        "MemoryModel": "model",
        "Perplexity": "perplexity",
        "ReadReport": "model",
        "Recall": "recall",
    }

    # The other modules with a page of their own in docs/api, for `import everlong` alone.
    _MODULES = ("control", "data", "doctor", "embedding", "eval", "models", "pictures", "pipeline", "rope")

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
        globals()[name] = found  # the next time it is there
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


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
