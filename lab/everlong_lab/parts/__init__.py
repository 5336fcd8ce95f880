"""Training and measuring of everlong's parts, one folder each, under the part's own name."""

from typing import Final

MAY_IMPORT: Final = (
    "corpora",
    "data",
    "eval",
    "training",
)
