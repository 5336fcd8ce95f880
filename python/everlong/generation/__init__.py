"""A model with a memory: reading, answering, generating, and how well it predicts."""

from typing import Final

MAY_IMPORT: Final = (
    "_core",
    "config",
    "errors",
    "files",
    "frame",
    "kv_cache",
    "memory",
    "models",
    "paths",
    "retrieval",
    "text",
)
