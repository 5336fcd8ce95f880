"""Who says, while text is read, how probable it is that a topic ends: the learned trigger (parts/trigger)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch


class TopicEnds(Protocol):
    """Reads the states that a forward makes anyway, chunk after chunk; no later token changes what it said."""

    @property
    def hidden_layers(self) -> Sequence[int]:
        """Whose states it needs, as `HiddenTap` counts them."""

    @property
    def threshold(self) -> float:
        """From which probability on a block may end."""

    @property
    def lookahead(self) -> int:
        """How many tokens behind a place are read before it has a probability."""

    def restart(self) -> None:
        """What comes next is another text."""

    def probabilities(self, hidden: Mapping[int, torch.Tensor]) -> npt.NDArray[np.float32]:
        """[n] of a chunk's hidden states [n, hidden size] by layer: once its i-th token is read, how probable it is
        that a topic ended `lookahead` tokens before.
        """
