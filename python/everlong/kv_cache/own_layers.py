"""The cache layers that are not archived: sliding windows and linear attention, each with a state of its own.

They are transformers' own cache layers and see the whole stream in order, whatever the frame drops or recalls. A
sliding window's keys turn with the frame when its positions move. A linear-attention state knows no positions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers.cache_utils import DynamicSlidingWindowLayer

from everlong.models.releases import EMPTY_LAYERS
from everlong.models.rope import RopeTable, turn_keys

Snapshot = dict[int, dict[str, Any]]


class OwnLayers:
    """The layers by their index in the model. `tables` says how those with a window rotate their keys.

    Layers that use another layer's keys have a place among them, and no state.
    """

    def __init__(self, layers: Mapping[int, Any], tables: Mapping[int, RopeTable]) -> None:
        self.layers = layers
        self._stateful = {index: layer for index, layer in layers.items() if not isinstance(layer, EMPTY_LAYERS)}
        self._tables = tables
        self._empty = self.snapshot()

    def __bool__(self) -> bool:
        return len(self._stateful) > 0

    def turn(self, delta: int) -> None:
        """Turn what the windows hold: the frame's positions moved by `delta`."""
        for index, table in self._tables.items():
            layer = self.layers[index]
            if layer.is_initialized:
                layer.keys = turn_keys(layer.keys, table, delta)

    @property
    def windows_alone(self) -> bool:
        """Whether all of them are windows, of which a snapshot copies nothing."""
        return all(map(_is_window, self._stateful.values()))

    def seen_from(self, end: int) -> int:
        """Return the first token before `end` of which any of them still has anything."""
        if not self.windows_alone:
            return 0
        return max(
            0, end - max((one.keys.shape[-2] for one in self._stateful.values() if one.is_initialized), default=0)
        )

    def snapshot(self) -> Snapshot:
        """Return the state, to be put back. Neither transformers nor `turn` writes a window's tensors in place."""
        return {index: self._state(layer) for index, layer in self._stateful.items()}

    def empty(self) -> None:
        """Reset them, as if they had seen no token yet."""
        self.restore(self._empty)

    def restore(self, saved: Snapshot) -> None:
        """Put a snapshot back. It may be put back again later."""
        for index, layer in self._stateful.items():
            layer.__dict__.clear()
            layer.__dict__.update(saved[index] if _is_window(layer) else copy.deepcopy(saved[index]))

    @staticmethod
    def _state(layer: Any) -> dict[str, Any]:
        return dict(layer.__dict__) if _is_window(layer) else copy.deepcopy(layer.__dict__)

    # --- as named tensors, for a file

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return a copy of all state that the layers hold, on the CPU; none for layers that saw no token yet."""
        out: dict[str, torch.Tensor] = {}
        for index, layer in self._stateful.items():
            if _is_window(layer):
                if layer.is_initialized:
                    out[f"{index}.keys"] = layer.keys
                    out[f"{index}.values"] = layer.values
                    out[f"{index}.seen"] = torch.tensor(layer.cumulative_length)
                continue
            for name in ("conv", "recurrent"):
                for state, tensor in getattr(layer, f"{name}_states").items():
                    if tensor is not None:
                        out[f"{index}.{name}.{state}"] = tensor
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in out.items()}

    def load(self, tensors: Mapping[str, torch.Tensor], device: torch.device, dtype: torch.dtype) -> None:
        """Fill new, empty layers with what `tensors` returned.

        The model may have been loaded in another dtype since then. State made of activations (keys and values of
        windows, states of convolutions) takes this `dtype`. Recurrent states keep theirs, because they are summed in
        it.
        """
        for index, layer in self._stateful.items():
            own = {name: t.to(device) for name, t in tensors.items() if name.startswith(f"{index}.")}
            if _is_window(layer):
                if own:
                    keys, values = own[f"{index}.keys"].to(dtype), own[f"{index}.values"].to(dtype)
                    layer.lazy_initialization(keys, values)
                    layer.keys, layer.values = keys, values
                    layer.cumulative_length = int(own[f"{index}.seen"])
                continue
            for name, tensor in own.items():
                _, kind, state = name.split(".")
                tensor = tensor.to(dtype) if kind == "conv" else tensor
                layer.lazy_initialization(**{f"{kind}_states": tensor}, state_idx=int(state))
                getattr(layer, f"{kind}_states")[int(state)].copy_(tensor)
                layer.has_previous_state[int(state)] = True


def _is_window(layer: Any) -> bool:
    return isinstance(layer, DynamicSlidingWindowLayer)
