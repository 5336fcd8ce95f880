"""A model, and how it is read: loading by name, its anatomy, and what a figure was made with."""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from everlong.models.loading import (
        ModelNotFoundError,
        dtype_name,
        embedded_file,
        load,
        name_from_anywhere,
        resolve,
    )

MAY_IMPORT: Final = ("_core", "_native", "errors", "memory", "ops", "paths", "plugins", "text")

DEFAULT_MODEL = "smollm2"

__all__ = [
    "DEFAULT_MODEL",
    "ModelNotFoundError",
    "dtype_name",
    "embedded_file",
    "load",
    "name_from_anywhere",
    "resolve",
]


def __getattr__(name: str) -> object:
    """Load what needs torch when it is first asked for (PEP 562), as `everlong` does."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.loading"), name)
