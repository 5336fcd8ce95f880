"""Reads a model's un-rotated queries and hidden states while it computes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch

import everlong.ops as ops
from everlong.models.attach import AttachedModel, decoder_layers
from everlong.models.batched_forward import rows_of_thread
from everlong.models.hooks import register_hook
from everlong.models.rope import RopeTable


class QueryTap:
    """Context manager: keep the un-rotated q of some layers, over all forwards inside it.

    It reads forwards of the thread that entered it: others may use the model meanwhile. At its end it takes its hooks
    off. Entered again, it goes on. A query is scaled so that q.k / sqrt(D) is the model's own score, whatever its
    attention multiplies with.
    """

    def __init__(self, served: AttachedModel, layers: Iterable[int]) -> None:
        self._served = served
        self._layers = sorted(set(layers))
        self._kept: dict[int, list[torch.Tensor]] = {layer: [] for layer in self._layers}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> QueryTap:
        self._thread = threading.get_ident()
        for layer in self._layers:
            module = self._served.query_module(layer)
            self._hooks.append(register_hook(module.register_forward_hook, self._hook(layer)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _hook(self, layer: int) -> Callable[[torch.nn.Module, object, torch.Tensor], None]:
        scale = self._served.score_scale(layer)

        def keep(module: torch.nn.Module, args: object, output: torch.Tensor) -> None:
            rows = rows_of_thread(self._thread, output.detach(), 2 if self._served.heads_first else 1)
            if rows is not None:
                self._kept[layer].append(self._served.queries(rows).float() * scale)

        return keep

    def queries(self, layer: int) -> torch.Tensor:
        """Return q [tokens, Hq, D] fp32 of every token seen, un-rotated."""
        return torch.cat(self._kept[layer])

    def drop_before(self, count: int) -> None:
        """Forget forwards that none of the newest `count` tokens was in."""
        _drop_before(self._kept, count)


class HiddenTap:
    """Context manager: keep hidden states of some layers, over all forwards inside it.

    It reads forwards of the thread that entered it: others may use the model meanwhile. At its end it takes its hooks
    off. Entered again, it goes on. Layers count as in transformers' `output_hidden_states`. 0 is what the first layer
    gets, and i is what layer i - 1 gives. The last one, as many as the model has layers, is behind the final norm. A
    negative layer counts from there. ValueError for a layer that does not exist; UnsupportedModelError where the
    model's layers cannot be found.
    """

    def __init__(self, model: Any, layers: Iterable[int]) -> None:
        self._decoder, self._modules = decoder_layers(model)
        count = len(self._modules)
        wanted = sorted(set(layers))
        wrong = [layer for layer in wanted if not -count - 1 <= layer <= count]
        if wrong:
            raise ValueError(f"hidden layers are {wrong}, expected {-count - 1} to {count}")
        self._place = {layer: layer % (count + 1) for layer in wanted}
        self._kept: dict[int, list[torch.Tensor]] = {place: [] for place in self._place.values()}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> HiddenTap:
        self._thread = threading.get_ident()
        for place in self._kept:
            if place == 0:
                hook = register_hook(self._modules[0].register_forward_pre_hook, self._first, with_kwargs=True)
            elif place == len(self._modules):
                hook = register_hook(self._decoder.register_forward_hook, self._hook(place))
            else:
                hook = register_hook(self._modules[place - 1].register_forward_hook, self._hook(place))
            self._hooks.append(hook)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def hidden(self, layer: int) -> torch.Tensor:
        """Return [tokens, hidden size] of every token seen, in the model's dtype."""
        return torch.cat(self._kept[self._place[layer]])

    def drop_before(self, count: int) -> None:
        """Forget forwards that none of the newest `count` tokens was in."""
        _drop_before(self._kept, count)

    def _first(self, module: object, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> None:
        if kwargs is not None:  # else another thread called while it was put on or taken off
            self._keep(0, args[0] if args else kwargs["hidden_states"])

    def _hook(self, place: int) -> Callable[[torch.nn.Module, object, Any], None]:
        def keep(module: torch.nn.Module, args: object, output: Any) -> None:
            # A layer gives a tensor or a tuple that begins with it. A decoder gives an output that begins with it.
            self._keep(place, output if isinstance(output, torch.Tensor) else output[0])

        return keep

    def _keep(self, place: int, states: torch.Tensor) -> None:
        rows = rows_of_thread(self._thread, states.detach())
        if rows is not None:
            self._kept[place].append(rows[0])


def _drop_before(kept: Mapping[int, list[torch.Tensor]], count: int) -> None:
    for forwards in kept.values():
        while len(forwards) > 1 and sum(map(len, forwards[1:])) >= count:
            del forwards[0]


@dataclasses.dataclass(frozen=True)
class HiddenRows:
    """Hidden states of a run of tokens that grows at its end. A layer may lack some of them."""

    chunks: tuple[tuple[int, Mapping[int, torch.Tensor]], ...] = ()  # tokens, and [tokens, hidden size] by layer

    def added(self, tokens: int, hidden: Mapping[int, torch.Tensor], layers: Sequence[int]) -> HiddenRows:
        """Return it with so many tokens more, and these layers of `hidden`."""
        if not self.chunks and not layers:
            return self
        return HiddenRows((*self.chunks, (tokens, {layer: hidden[layer] for layer in layers})))

    def newest(self, count: int) -> HiddenRows:
        """Return it with the newest tokens alone."""
        chunks: list[tuple[int, Mapping[int, torch.Tensor]]] = []
        for tokens, hidden in reversed(self.chunks):
            if count <= 0:
                break
            taken = min(tokens, count)
            chunks.append((taken, {layer: rows[tokens - taken :] for layer, rows in hidden.items()}))
            count -= taken
        return HiddenRows(tuple(reversed(chunks)))

    def span(self, back: int, count: int) -> dict[int, torch.Tensor]:
        """Return [count, hidden size] by layer, of the tokens from `back` before the end on.

        Layers that lack some of them are left out. An empty run of tokens has no layers.
        """
        chunks = self.newest(back).chunks
        layers = set.intersection(*(set(hidden) for _, hidden in chunks)) if chunks else set()
        if count == 0 or sum(tokens for tokens, _ in chunks) < back:
            return {}
        return {layer: torch.cat([hidden[layer] for _, hidden in chunks])[:count] for layer in sorted(layers)}


def side_by_side(hidden: Mapping[int, torch.Tensor], layers: Sequence[int]) -> torch.Tensor:
    """Return hidden states [n, hidden size] by layer as [n, layers * hidden size]."""
    return torch.cat([hidden[layer] for layer in layers], dim=-1)


def rotate_queries(rope: RopeTable, q: torch.Tensor, distance: int) -> torch.Tensor:
    """Rotate q [T, H, D] as if every key stood `distance` positions before it. This is better than un-rotated."""
    if rope.rotary_dim == 0:
        return q
    rows = q.transpose(0, 1)[None].contiguous()
    positions = torch.full((q.shape[0],), distance, dtype=torch.int64, device=q.device)
    # Keys are stored without the attention scaling m; a score of the model carries it twice.
    turned, _ = ops.rerotate_kv(rows, rows, positions, rope.inv_freq, rope.attention_scaling**2, rope.interleaved)
    return turned[0].transpose(0, 1)
