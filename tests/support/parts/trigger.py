"""A trigger with drawn weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from everlong.models.early_exit import early_exit_states
from everlong.models.pack import Pack, pack_of
from everlong.parts.trigger.model import TRIGGER, TriggerNet, TriggerSettings
from everlong.parts.trigger.runtime import BoundaryPredictions, stored_predictions

# The layers whose states a trigger reads, and numbers a state.
LAYERS, SIZE = (1, 2), 12
SETTINGS = TriggerSettings(LAYERS, SIZE, before_tokens=5, lookahead=3, units=6)


def drawn_trigger(seed: int = 0, settings: TriggerSettings = SETTINGS) -> TriggerNet:
    """Make a trigger whose normalisation is drawn too."""
    torch.manual_seed(seed)
    trigger = TriggerNet(settings)
    trigger.center.normal_()
    trigger.scale.uniform_(0.5, 2)
    return trigger.eval().requires_grad_(requires_grad=False)


def drawn_texts(count: int = 3, tokens: int = 900, seed: int = 0) -> list[BoundaryPredictions]:
    """Make texts with random probabilities of an end at every token, and a sentence or paragraph each 23 tokens."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        said = (rng.random(tokens) ** 4).astype(np.float32)
        ends = [(at, "paragraph" if rng.random() < 0.3 else "sentence") for at in range(9, tokens, 23)]
        texts.append(BoundaryPredictions(said, ends))
    return texts


def drawn_pack(model: Any, texts: list[BoundaryPredictions] | None = None, seed: int = 0) -> Pack:
    """Make a pack with a trigger for `model`, scaled to its states: those of a tiny model differ little."""
    settings = TriggerSettings(LAYERS, model.config.hidden_size, before_tokens=6, lookahead=4, units=8)
    trigger = drawn_trigger(seed, settings)
    states = early_exit_states(model, torch.randint(97, 123, (400,)), LAYERS)
    wide = torch.cat([states[layer] for layer in LAYERS], dim=-1)
    trigger.center.copy_(wide.mean(0))
    trigger.scale.copy_(1 / wide.std(0))
    part = trigger.part_with(stored_predictions(texts or drawn_texts()), {"data": {"drawn": 0}})
    return pack_of(model, {TRIGGER: part})
