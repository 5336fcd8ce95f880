"""What attention tokens receive while a text is read, reduced layer by layer, in a forward of transformers' own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import torch

from everlong.models.custom_attention import attend_plainly, override_attention

_ROWS_AT_ONCE = 256

LayerCallback = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


@dataclasses.dataclass(frozen=True)
class AttentionWindow:
    """Which rows of the forward [first, last) count, and their attention to which keys [first, last).

    Keys are all that the cache holds and the rows behind them.
    """

    rows: tuple[int, int]
    keys: tuple[int, int]


class AttentionStats:
    """Context manager: forwards inside it read the same text in one forward each, rows of a batch of one, causally.

    The model attends as ever, and the probabilities of the watches are kept. Forwards of other threads, and of other
    models, are not watched. UnsupportedModelError for a model that does not attend by "sdpa".
    """

    def __init__(self, model: Any, watches: Mapping[str, AttentionWindow], see: LayerCallback | None = None) -> None:
        """`see` is called with each layer's q [1, H, S, D], k, v [1, Hkv, N, D], rotated, too."""
        self._model = model
        self._also = see
        self._watches = dict(watches)
        self._sums: dict[str, torch.Tensor] = {}
        self._largest: dict[str, torch.Tensor] = {}
        self._layers: dict[str, int] = dict.fromkeys(watches, 0)
        self._layer: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def __enter__(self) -> AttentionStats:
        self._bringing = contextlib.ExitStack()
        self._bringing.enter_context(override_attention(self._model, self._attend))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bringing.close()

    def mass(self, name: str) -> torch.Tensor:
        """Return [keys] fp32: the attention that each key gets from all rows together, mean over heads and layers."""
        return self._sums[name] / self._layers[name]

    def largest(self, name: str) -> torch.Tensor:
        """Return [keys] fp32: the largest attention that a key gets from any row and head, mean over layers."""
        return self._largest[name] / self._layers[name]

    def _attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **arguments: Any,
    ) -> tuple[torch.Tensor, None]:
        scale = arguments.get("scaling")
        self._see(query, key, query.shape[-1] ** -0.5 if scale is None else scale)
        if self._also is not None:
            self._also(query, key, value)
        return attend_plainly(module, query, key, value, attention_mask, **arguments)

    @torch.no_grad()
    def _see(self, q: torch.Tensor, k: torch.Tensor, scale: float) -> None:
        """Take q [1, H, S, D] and k [1, Hkv, N, D] of one layer, rotated. The rows are the last S of the N."""
        heads, rows, keys, groups = q.shape[1], q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
        first = keys - rows
        ends = [watch.rows for watch in self._watches.values()]
        for begin in range(0, rows, _ROWS_AT_ONCE):
            end = min(rows, begin + _ROWS_AT_ONCE)
            if all(last <= begin or end <= start for start, last in ends):
                continue
            seen = first + end
            asked = q[0, :, begin:end].reshape(k.shape[1], groups * (end - begin), -1)
            scores = torch.matmul(asked, k[0, :, :seen].transpose(-1, -2)).view(heads, end - begin, seen).float()
            later = (
                torch.arange(seen, device=q.device)[None] > first + torch.arange(begin, end, device=q.device)[:, None]
            )
            shares = torch.softmax((scores * scale).masked_fill(later, -torch.inf), dim=-1)
            for name, watch in self._watches.items():
                of_rows = slice(max(watch.rows[0], begin) - begin, min(watch.rows[1], end) - begin)
                if of_rows.stop <= of_rows.start:
                    continue
                kept = shares[:, of_rows, watch.keys[0] : watch.keys[1]]
                missing = watch.keys[1] - watch.keys[0] - kept.shape[-1]  # keys behind the last row
                mass = torch.nn.functional.pad(kept.sum(dim=1).mean(dim=0), (0, missing))
                largest = torch.nn.functional.pad(kept.amax(dim=(0, 1)), (0, missing))
                self._add(name, mass, largest)
        for name in self._watches:
            self._close_layer(name)

    def _add(self, name: str, mass: torch.Tensor, largest: torch.Tensor) -> None:
        """Add what some rows of a layer gave."""
        if name in self._layer:
            before = self._layer[name]
            mass, largest = before[0] + mass, torch.maximum(before[1], largest)
        self._layer[name] = mass, largest

    def _close_layer(self, name: str) -> None:
        mass, largest = self._layer.pop(name)
        self._sums[name] = self._sums.get(name, 0) + mass
        self._largest[name] = self._largest.get(name, 0) + largest
        self._layers[name] += 1
