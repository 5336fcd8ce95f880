"""The lab's commands: `everlong train PART`, `everlong eval TASK`, `everlong tune`, `everlong demo`.

Importing this adds them.
`everlong.cli` imports it through the entry point `everlong.commands`.
"""

from typing import Final

from everlong_lab.cli import evidence, published, training, tune

MAY_IMPORT: Final = (
    "corpora",
    "eval",
    "part_list",
    "training",
)

__all__ = ["evidence", "published", "training", "tune"]
