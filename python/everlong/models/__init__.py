"""A model, and how it is read: loading it by name, what it is like inside, and what its figures were made with."""

from everlong.models.loading import (
    DEFAULT_MODEL,
    ModelNotFoundError,
    dtype_name,
    embedded_file,
    load,
    name_from_anywhere,
    resolve,
)

__all__ = [
    "DEFAULT_MODEL",
    "ModelNotFoundError",
    "dtype_name",
    "embedded_file",
    "load",
    "name_from_anywhere",
    "resolve",
]
