"""What a model attends to: the frame and its kinds, its zones, what moves into it and out of it."""

from typing import Final

MAY_IMPORT: Final = ("_core", "config", "errors", "kv_cache", "memory", "models", "ops", "text")
