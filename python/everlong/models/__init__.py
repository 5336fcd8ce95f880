"""A model, and how it is read: loading by name, its anatomy, and what a figure was made with."""

from typing import Final

from everlong.models.loading import (
    DEFAULT_MODEL,
    ModelNotFoundError,
    dtype_name,
    embedded_file,
    load,
    name_from_anywhere,
    resolve,
)

MAY_IMPORT: Final = ("_core", "_native", "errors", "memory", "ops", "paths")

__all__ = [
    "DEFAULT_MODEL",
    "ModelNotFoundError",
    "dtype_name",
    "embedded_file",
    "load",
    "name_from_anywhere",
    "resolve",
]
