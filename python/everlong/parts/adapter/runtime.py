"""A pack's adapter maps, attached while a question is answered from memory and at no other time.

So what is archived is the model's own. A model whose context is pages out of many texts, restored and rotated to new
positions, answers worse than one that has the right passage alone. The maps were trained to close that gap (train.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from everlong.frame.part import ModelAdapter
from everlong.models.low_rank import AttachedMaps, LowRankMaps
from everlong.models.pack import PackPart


class AdapterRuntime(ModelAdapter):
    """A pack's adapter beside a model."""

    def __init__(self, part: PackPart, model: torch.nn.Module) -> None:
        """Attach the maps. Raises ModelMismatchError for the adapter of another model."""
        self._attached = AttachedMaps(LowRankMaps.of_part(part), model)

    def adapt(self, frame: Any) -> AbstractContextManager[None]:
        return self._attached.active()
