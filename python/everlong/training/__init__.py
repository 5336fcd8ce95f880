"""Training of the learned parts: cached states, one loop, what a part is trained with, and the transform codec."""

from typing import Final

MAY_IMPORT: Final = (
    "_core",
    "corpora",
    "data",
    "errors",
    "frame",
    "models",
    "ops",
    "text",
)
