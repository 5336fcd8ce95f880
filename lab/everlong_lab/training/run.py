"""One training of a part: its model, the folder that keeps what it computes, and who is told how far it is."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from everlong.models.pack import Pack
from everlong.models.provenance import provenance
from everlong_lab.training.loop import MetricsFn, Progress, TrainingResult

One = TypeVar("One")


@dataclasses.dataclass(frozen=True)
class Run:
    """What every part's `train` gets beside its own settings."""

    model: Any
    tokenizer: Any
    work: pathlib.Path  # folder for states and checkpoints; a run that was cut short goes on there
    pack: Pack | None = None  # what was trained for the model before
    progress: Progress | None = None
    check: MetricsFn | None = None  # called with what was found at each check

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.get_text_config(decoder=True).hidden_size)

    def layers(self, named: tuple[int, ...], depths: Sequence[float]) -> tuple[int, ...]:
        """Return the named layers, or else those at some shares of the model's depth."""
        count = self.model.config.get_text_config(decoder=True).num_hidden_layers
        return named or tuple(sorted({min(max(1, round(depth * count)), max(1, count - 1)) for depth in depths}))

    def made(self, training: Any, learned: TrainingResult, figures: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """Return how a part was made, as its pack says it.

        It has `data` and what else the part says of itself in `more`, and `figures` by what they were measured on.
        """
        return {
            **more,
            "training": plain(training),
            "steps": learned.steps,
            "minutes": round(learned.minutes, 2),
            "figures": dict(figures),
            "log": list(learned.log),
            "with": provenance(self.model),
        }


def two_splits(what: str, every: Sequence[One], split_of: Callable[[One], str]) -> tuple[list[One], list[One]]:
    """Return the ones to train on and the ones to hold out. Raises ValueError where one of the two has none.

    `what` begins the error's text.
    """
    train, fit = ([one for one in every if split_of(one) == split] for split in ("train", "fit"))
    if not train or not fit:
        raise ValueError(f"{what} and stopped by others; one of the two has none")
    return train, fit


def before_and_after(learned: TrainingResult) -> dict[str, float]:
    """Return the loss on held-out texts, at first and after training."""
    return {"at first": learned.held_out[0], "trained": min(learned.held_out)}


def plain(settings: Any) -> dict[str, Any]:
    """Return a dataclass as JSON gives it back; paths become text."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings), default=str))
    return found
