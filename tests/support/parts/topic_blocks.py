"""A model with a trigger, and the states that it reads."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch

from everlong.parts.trigger.model import TRIGGER, TriggerNet
from everlong.parts.trigger.runtime import BoundaryPredictions
from support import byte_tokenizer, random_text, tiny_model
from support.parts.trigger import LAYERS, drawn_pack


@pytest.fixture(name="model", scope="module")
def a_model() -> Any:
    return tiny_model("llama", num_hidden_layers=4)


@pytest.fixture(name="pack", scope="module")
def a_pack(model: Any, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Its calibration text is what it says of random text itself."""
    folder = tmp_path_factory.mktemp("pack")
    first = drawn_pack(model)
    trigger = TriggerNet.of_part(first.parts[TRIGGER])
    said = trigger.probabilities(states_of(model, byte_tokenizer()(random_text(3000, seed=8)).input_ids)).numpy()
    drawn_pack(model, [BoundaryPredictions(said, [])]).save(folder)
    return folder


def states_of(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return torch.cat([hidden[layer][0] for layer in LAYERS], dim=-1)
