"""Listening to a model's un-rotated queries while it reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import TracebackType

import torch

from everlong import ops
from everlong.models.attach import ServedModel
from everlong.models.rope import RopeTable


class QueryTap:
    """Context manager: keeps the un-rotated q of some layers, over all forwards inside it, then takes its hooks off.

    Forwards of the thread that entered it, that is: others may use the model meanwhile.
    A query is scaled so that q.k / sqrt(D) is the model's own score, whatever its attention multiplies with.
    """

    def __init__(self, served: ServedModel, layers: Iterable[int]) -> None:
        self._served = served
        self._layers = sorted(set(layers))
        self._kept: dict[int, list[torch.Tensor]] = {layer: [] for layer in self._layers}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> QueryTap:
        self._thread = threading.get_ident()
        for layer in self._layers:
            module = self._served.query_module(layer)
            self._hooks.append(module.register_forward_hook(self._keeper(layer)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _keeper(self, layer: int) -> Callable[[torch.nn.Module, object, torch.Tensor], None]:
        scale = self._served.score_scale(layer)

        def keep(module: torch.nn.Module, args: object, output: torch.Tensor) -> None:
            if threading.get_ident() == self._thread:
                self._kept[layer].append(self._served.queries(output.detach()).float() * scale)

        return keep

    def queries(self, layer: int) -> torch.Tensor:
        """q [tokens, Hq, D] fp32 of every token seen, un-rotated."""
        return torch.cat(self._kept[layer])


def rotate_queries(rope: RopeTable, q: torch.Tensor, distance: int) -> torch.Tensor:
    """q [T, H, D] as if every key stood `distance` positions before it; better than un-rotated."""
    if rope.rotary_dim == 0:
        return q
    rows = q.transpose(0, 1)[None].contiguous()
    positions = torch.full((q.shape[0],), distance, dtype=torch.int64, device=q.device)
    # Keys are stored without the attention scaling m; a score of the model carries it twice.
    turned, _ = ops.rerotate_kv(rows, rows, positions, rope.inv_freq, rope.attention_scaling**2, rope.interleaved)
    return turned[0].transpose(0, 1)
