"""Where the figures of a training go while it runs: TensorBoard, Weights & Biases or Trackio, by accelerate."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everlong.errors import EverlongError
from everlong_lab.training.loop import MetricsFn
from everlong_lab.training.run import plain

TRACKERS = ("tensorboard", "wandb", "trackio")
_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}


def require_tracker(name: str) -> None:
    """Raise ValueError for an unknown tracker, EverlongError for one whose package is missing."""
    if name not in TRACKERS:
        raise ValueError(f"there is no tracker {name!r}: there are {', '.join(TRACKERS)}")
    if importlib.util.find_spec(_PACKAGES[name]) is None:
        raise EverlongError(f"the tracker {name} needs its package: pip install {_PACKAGES[name]}")


@contextlib.contextmanager
def reporting(name: str, part: str, work: Path, training: Any, log: MetricsFn | None) -> Iterator[MetricsFn | None]:
    """Give what a training tells its checks to: `told`, and the tracker `name`, with what it trains with.

    TensorBoard's files lie in the folder `tensorboard` of `work`. With the name "" only `told` is told.
    """
    if not name:
        yield log
        return
    require_tracker(name)
    tracking = importlib.import_module("accelerate.tracking")
    kind = tracking.LOGGER_TYPE_TO_CLASS[name]
    run = f"everlong {part}"
    made = kind(run, logging_dir=str(work / "tensorboard")) if kind.requires_logging_directory else kind(run)
    if hasattr(made, "start"):  # older releases begin at once
        made.start()
    made.store_init_configuration(_flat(plain(training) if dataclasses.is_dataclass(training) else {}))

    def both(step: int, figures: dict[str, float]) -> None:
        if log is not None:
            log(step, figures)
        made.log({what: value for what, value in figures.items() if what != "step"}, step=step)

    try:
        yield both
    finally:
        made.finish()


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as every tracker takes them: numbers, text and truth."""
    return {name: value if isinstance(value, int | float | str) else str(value) for name, value in values.items()}
