"""Measuring a memory: needle in a haystack, suites of tasks, perplexity. Seeded, offline."""

from typing import Final

MAY_IMPORT: Final = (
    "corpora",
    "data",
    "pictures",
)
