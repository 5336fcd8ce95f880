"""The learned parts, one folder each: the model, and what it does at work. Training is in everlong-lab."""

from typing import Final

MAY_IMPORT: Final = ("_core", "config", "errors", "frame", "memory", "models", "part_list", "retrieval", "text")
