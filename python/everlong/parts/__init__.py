"""What is learned, a folder a part: its models, what it does at work, how it is trained, how it is measured."""

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
