"""Training of the learned parts: cached states, one loop, and what a part is trained with."""

from typing import Final

MAY_IMPORT: Final = ("corpora",)
