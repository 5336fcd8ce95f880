"""From a model and questions to a pack: what `everlong train towers` does."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from everlong.learned.pack import Pack, PackPart
from everlong.learned.towers import PART, TowerSettings
from everlong.models.provenance import made_with
from everlong.text.vectors import Encoder, encoder_name
from everlong.training.data import FOREIGN, Pairs
from everlong.training.states import cached_states
from everlong.training.teacher import taught_vectors
from everlong.training.towers import TowerTrainer, TowerTraining

Progress = Callable[[str, int, int], None]
# As shares of the model's depth, where its states tell most of what a text says (findings-2: 10 and 16 of 30).
_DEPTHS = (1 / 3, 0.43, 0.53)


def middle_layers(model: Any) -> tuple[int, ...]:
    """Which layers' states the towers read where nobody names others."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    return tuple(sorted({min(max(1, round(depth * count)), max(1, count - 1)) for depth in _DEPTHS}))


def train_towers(
    model: Any,
    tokenizer: Any,
    pairs: Pairs,
    *,
    work: pathlib.Path,
    layers: Sequence[int] = (),
    training: TowerTraining | None = None,
    teacher: Encoder | None = None,
    progress: Progress | None = None,
    check: Callable[[int, dict[str, float]], None] | None = None,
) -> Pack:
    """Cache states and the teacher's vectors in `work`, train, measure on stories that were held out; the pack.

    What was cut short goes on where it stopped when it is called again with the same arguments.
    """
    training = training or TowerTraining()
    layers = tuple(layers) or middle_layers(model)
    hidden_size = model.config.get_text_config(decoder=True).hidden_size
    states = cached_states(model, tokenizer, pairs, layers, work / "states", seed=training.seed, progress=progress)
    taught = None if teacher is None else taught_vectors(pairs, teacher, work / "teacher", progress=progress)
    settings = TowerSettings(layers, hidden_size)
    trainer = TowerTrainer(pairs, states, settings, training, taught, checkpoints=work / "checkpoint", progress=check)
    trained = trainer.train()
    figures = {split: trainer.found(trained.towers, split) for split in ("fit", "test")}
    made = {
        "data": pairs.origins(),
        "foreign": sorted({text.name for text in pairs.texts if text.origin == FOREIGN}),
        "training": dataclasses.asdict(training),
        "teacher": "" if teacher is None else encoder_name(teacher),
        "steps": trained.steps,
        "minutes": round(trained.minutes, 1),
        "figures": figures,
        "log": list(trained.log),
        "with": made_with(model),
    }
    return pack_of(model, trained.towers.part(made))


def pack_of(model: torch.nn.Module, towers: PackPart) -> Pack:
    from everlong.models.fingerprint import weights_fingerprint

    name = str(getattr(model, "name_or_path", ""))
    return Pack(weights_fingerprint(model), name, {PART: towers})
