"""How many tokens a model computes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass
class Meter:
    prefilled: int = 0  # tokens of forward passes over more than one


@contextlib.contextmanager
def metered(model: Any) -> Iterator[Meter]:
    """Count the forward passes of `model` inside, whoever calls them."""
    meter = Meter()

    def count(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids is not None and ids.shape[-1] > 1:
            meter.prefilled += ids.shape[-1]

    hook = model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield meter
    finally:
        hook.remove()
