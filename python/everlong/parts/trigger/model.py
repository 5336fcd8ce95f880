"""A head on the served model's own states that says how probable a topic's end is at a place of a text.

It is a learned trigger: a classifier of places on frozen states. What comes next shows whether a topic has ended. So a
place is judged once `lookahead` tokens after it are read; nothing later counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from everlong.models.pack import PackedModule, PackPart

TRIGGER = "trigger"

_MOST = 5.0  # clamp for centred and scaled numbers: the states of a text's very first token have another size


@dataclasses.dataclass(frozen=True)
class TriggerSettings:
    layers: tuple[int, ...]  # layers whose states are read, as `HiddenTap` counts them
    hidden_size: int
    before_tokens: int = 64  # tokens before a place, whose mean stands for what ends there
    lookahead: int = 16  # tokens after a place, whose mean stands for what begins there
    units: int = 32  # width of the hidden layer

    @property
    def reach(self) -> int:
        """How many tokens before the newest one the newest probability depends on."""
        return self.before_tokens + self.lookahead - 1


class TriggerNet(PackedModule):
    """Reads states [n, layers * hidden size] that follow each other in a text, with the layers side by side."""

    settings: TriggerSettings
    BESIDE = ("calibration",)

    center: torch.Tensor
    scale: torch.Tensor

    def __init__(self, settings: TriggerSettings, *, dropout: float = 0.0) -> None:
        if settings.lookahead < 1 or settings.before_tokens < 1:
            raise ValueError("before_tokens and lookahead are at least 1")
        super().__init__()
        self.settings = settings
        width = len(settings.layers) * settings.hidden_size
        self.register_buffer("center", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        self.inner = torch.nn.Linear(4 * width, settings.units)
        self.outer = torch.nn.Linear(settings.units, 1)
        self._dropout = torch.nn.Dropout(dropout)

    def normal(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states [n, width] as fp32, centred and scaled as in training."""
        return ((states.float() - self.center) * self.scale).clamp(-_MOST, _MOST)

    def inputs(self, normal: torch.Tensor) -> torch.Tensor:
        """Return the features of the places after 1, 2 ... n - lookahead of n tokens: [places, 4 * width].

        They come from `normal` states [n, width] and have four parts: the token before the place, the token after it,
        the step from the mean before to the mean after, and the size of that step.
        """
        behind = self.settings.lookahead
        places = len(normal) - behind
        if places < 1:
            return normal.new_zeros((0, 4 * normal.shape[-1]))
        step = self._means(normal[1:], behind) - self._means_so_far(normal[:places])
        return torch.cat([normal[:places], normal[1 : places + 1], step, step.abs()], dim=-1)

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits [places] of the features."""
        hidden = torch.nn.functional.gelu(self.inner(self._dropout(inputs)))
        logits: torch.Tensor = self.outer(self._dropout(hidden))[:, 0]
        return logits

    def probabilities(self, states: torch.Tensor) -> torch.Tensor:
        """Return probabilities [n] of states [n, width].

        The i-th is that of the place `lookahead` tokens before the i-th token, once that token is read. It is 0 where
        no text stands before that place.
        """
        probabilities = torch.sigmoid(self.logits(self.inputs(self.normal(states))))
        return torch.cat([probabilities.new_zeros(len(states) - len(probabilities)), probabilities])

    @staticmethod
    def _means(rows: torch.Tensor, count: int) -> torch.Tensor:
        """Return the mean of every `count` rows that follow each other."""
        return torch.nn.functional.avg_pool1d(rows.T[None], count, stride=1)[0].T

    def _means_so_far(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the mean of every row and those before it, before_tokens together or as many as there are."""
        count = self.settings.before_tokens
        padded = torch.nn.functional.pad(rows, (0, 0, count - 1, 0))
        there = torch.arange(1, len(rows) + 1, device=rows.device).clamp(max=count)
        return self._means(padded, count) * (count / there)[:, None]

    def part_with(self, calibration: Mapping[str, torch.Tensor], made: Mapping[str, Any]) -> PackPart:
        """Return the part as a pack keeps it, with the calibration text beside it."""
        part = self.part(made)
        kept = {f"{_CALIBRATION}{name}": tensor for name, tensor in calibration.items()}
        return dataclasses.replace(part, tensors={**part.tensors, **kept})


_CALIBRATION = "calibration."


def calibration_of(part: PackPart) -> dict[str, torch.Tensor]:
    """Return the part's calibration text, by which thresholds are found."""
    return {
        name.removeprefix(_CALIBRATION): tensor
        for name, tensor in part.tensors.items()
        if name.startswith(_CALIBRATION)
    }
