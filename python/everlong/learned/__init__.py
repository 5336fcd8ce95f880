"""What was trained for a model, and how it is put to use: packs, towers, trigger, Trimmer, writers, Walker."""

from typing import Final

MAY_IMPORT: Final = ("_core", "errors", "memory", "models")
