"""Measuring a memory: needle in a haystack, suites of tasks, perplexity. Seeded, offline."""

from typing import Final

MAY_IMPORT: Final = (
    "_core",
    "config",
    "corpora",
    "data",
    "errors",
    "frame",
    "generation",
    "memory",
    "models",
    "pictures",
    "retrieval",
    "settings",
    "text",
)
