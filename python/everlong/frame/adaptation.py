"""What helps a model to answer from what came back: maps beside its layers (models/low_rank.py)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Adaptation(Protocol):
    """Laid beside a model's layers; at work while a question and its answer are computed behind recalled pages."""

    def at_work(self) -> AbstractContextManager[None]:
        """Inside, the model computes with it. Used by the frame's thread alone."""
