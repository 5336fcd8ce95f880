"""Where a model's weights lie. accelerate may keep them elsewhere until a layer computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

import everlong.ops as ops
from everlong.errors import UnsupportedModelError


def device_of(model: Any, layers: torch.nn.Module, name: str) -> torch.device:
    """Return the device where the keys and values of all layers are computed.

    Raises UnsupportedModelError where that is not one device with all their weights on it, and everlong's operators.
    """
    devices = {parameter.device for parameter in layers.parameters()}
    placed: dict[str, Any] = getattr(model, "hf_device_map", None) or {}
    on = _named(devices) if torch.device("meta") not in devices else _named(map(_device, placed.values()))
    away = [hook for hook in _hooks(model) if getattr(hook, "offload", False)]
    if away:
        there = _device(away[0].execution_device)
        kept = f", which are kept on {on}," if placed else ""
        raise UnsupportedModelError(
            f"{name}: accelerate brings weights of its layers{kept} to {there} for each forward; {_what_works(there)}"
        )
    mover = next((hook for hook in _hooks(model) if _moves(hook, devices)), None)
    if mover is not None:
        there = _device(mover.execution_device)
        raise UnsupportedModelError(
            f"{name}: it lies on {on}, and accelerate moves it to {there} when it first computes; {_what_works(there)}"
        )
    if len(devices) != 1 and placed:
        raise UnsupportedModelError(
            f"{name}: its device_map put its layers on {on}; {_what_works(min(devices, key=str))}"
        )
    if len(devices) != 1:
        raise UnsupportedModelError(f"{name}: its layers lie on {sorted(map(str, devices))}; one device for all works")
    device = devices.pop()
    if (why := ops.refusal(device)) is not None:
        raise UnsupportedModelError(f"{name}: it lies on {device}, and {why}; model.to('cpu') works")
    return device


def require_embeddings(model: Any, name: str) -> None:
    """Raise UnsupportedModelError where token ids cannot be given to a model where its embeddings lie."""
    if model.get_input_embeddings().weight.device.type != "meta":
        return
    there = next((_device(hook.execution_device) for hook in _hooks(model) if getattr(hook, "offload", False)), None)
    if there is None:
        raise UnsupportedModelError(
            f"{name}: its embeddings lie on meta, they are not loaded; from_pretrained loads them"
        )
    raise UnsupportedModelError(
        f"{name}: accelerate brings its embeddings to {there} for each forward; a device_map that leaves them on a "
        f"device works by text alone, and {_what_works(there)}"
    )


def _what_works(device: torch.device) -> str:
    return (
        f"all of it on one device works: device_map={{'': '{device}'}}, quantized where it is too large for that; or "
        "device_map='cpu'"
    )


def _hooks(model: torch.nn.Module) -> Iterator[Any]:
    """Yield what accelerate does around the forwards of its modules, the outer ones first."""
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)
        yield from getattr(hook, "hooks", [] if hook is None else [hook])


def _moves(hook: Any, devices: set[torch.device]) -> bool:
    """Return whether it will take weights from where they are, all at once."""
    to = getattr(hook, "execution_device", None)
    return to is not None and not hasattr(hook, "offload") and devices != {_device(to)}


def _device(place: Any) -> torch.device:
    """Return a device as accelerate names it: a number of a GPU, a name, "disk"."""
    if isinstance(place, int):
        return torch.device("cuda", place)
    return torch.device("cpu") if place == "disk" else torch.device(place)


def _named(devices: Iterable[torch.device]) -> str:
    names = sorted({str(device) for device in devices})
    return " and ".join(names)
