"""A model with a memory: reading, answering, generating, and how well it predicts."""

from typing import Final

MAY_IMPORT: Final = ("_core", "config", "errors", "frame", "memory", "models", "retrieval", "settings", "text")
