"""The learned parts, one folder each: the model, what it does at work, its training and its measurement."""

from typing import Final

MAY_IMPORT: Final = (
    "_core",
    "config",
    "corpora",
    "data",
    "errors",
    "eval",
    "frame",
    "generation",
    "memory",
    "models",
    "part_list",
    "retrieval",
    "text",
    "training",
)
