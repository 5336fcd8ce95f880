"""Adapters as peft lays them over a model's layers: which are at work, and which of them keys and values depend on.

An adapter over the output embeddings changes logits and no key, so a memory ignores it. Where output and input
embeddings share their tensor, such an adapter leaves the tensor alone. What is merged into the tensor does count.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

# Names, below an adapted layer, of what the adapters lie over.
_LAID_OVER = ("base_layer", "original_module")


@dataclasses.dataclass(frozen=True)
class Adapters:
    """A model's adapters as they stand now. Layers are named as in `named_modules`."""

    active: tuple[str, ...]  # layers and their adapters at work, of those that keys and values depend on
    _layers: dict[str, frozenset[str]]  # by adapted layer: loaded adapters that are not at work there
    _output: str | None  # the output embeddings
    _model: str  # what peft puts before the names of the model itself: "base_model.model."

    def name_of(self, weight: str) -> str | None:
        """Return a weight's name without adapters that keys do not depend on; None: it belongs to such an adapter."""
        for layer, idle in reversed(self._layers.items()):  # the deepest first
            part, _, below = weight.removeprefix(f"{layer}.").partition(".")
            if not weight.startswith(f"{layer}.") or not below:
                continue
            if not _is_in(layer, self._output):
                if {part, below.partition(".")[0]} & idle:
                    return None
            elif part in _LAID_OVER:
                weight = f"{layer}.{below}"
            else:
                return None
        return weight if self.active else weight.removeprefix(self._model)

    def keys_depend_on(self, weight: str) -> bool:
        """Return whether keys and values depend on a weight; at this name only, for a weight that stands at several."""
        return not _is_in(weight, self._output) and self.name_of(weight) is not None


def adapters_of(model: torch.nn.Module) -> Adapters:
    """Return which adapters a model has, and what each of its layers does with them."""
    output = _output_name(model)
    found: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        active = getattr(module, "active_adapters", None)
        if isinstance(active, list | tuple):  # a layer of peft; a model of transformers has a method of that name
            found[name] = [] if getattr(module, "disable_adapters", False) else list(active)
    # What holds adapted layers, peft's model and its tuner, has no adapter of its own.
    layers = {
        name: at_work
        for name, at_work in found.items()
        if _is_in(name, output) or not any(_holds(name, other) for other in found)
    }
    deep = any(not _is_in(name, output) for name in layers)
    told = [name for name in found if deep and not _is_in(name, output)]
    loaded = getattr(model, "peft_config", None)
    names = frozenset(loaded) if isinstance(loaded, dict) else frozenset()
    return Adapters(
        active=tuple(f"{name} {found[name]}" for name in told),
        _layers={name: names.difference(at_work) for name, at_work in layers.items()},
        _output=output,
        _model=_base_prefix(model),
    )


def _output_name(model: torch.nn.Module) -> str | None:
    """Return the name of the module that outputs logits, as in `named_modules`; None where the model does not say."""
    get: Any = getattr(model, "get_output_embeddings", None)
    return None if get is None else _name_in(model, get())


def _base_prefix(model: Any) -> str:
    base = model.get_base_model() if hasattr(model, "get_base_model") else None
    name = _name_in(model, base)
    return f"{name}." if name else ""


def _name_in(model: torch.nn.Module, wanted: torch.nn.Module | None) -> str | None:
    return next((name for name, module in model.named_modules() if module is wanted), None)


def _is_in(name: str, outer: str | None) -> bool:
    return outer is not None and (name == outer or name.startswith(f"{outer}."))


def _holds(outer: str, name: str) -> bool:
    return name != outer and name.startswith(f"{outer}." if outer else "")
