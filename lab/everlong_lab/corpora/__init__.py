"""Text to learn from and to measure by, made from a seed: facts, chains, streams, haystacks, tasks."""

from typing import Final

MAY_IMPORT: Final = ("data",)
