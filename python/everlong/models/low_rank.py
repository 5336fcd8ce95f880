"""Low-rank maps beside a model's own (LoRA, Hu et al. 2021). They change no weight, and work on request only."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from everlong.errors import ModelMismatchError
from everlong.models.hooks import register_hook
from everlong.models.pack import NO_PACK, PackError, PackPart

_DOWN, _UP, _SIZE = ".down", ".up", ".size"


@dataclasses.dataclass(frozen=True)
class MapSettings:
    rank: int = 8
    scale: float = 2.0  # of what the maps add; alpha / rank of the paper


class LowRankMaps(torch.nn.Module):
    """Two maps for each linear layer by its name: x [..., in] -> scale * up (down x) [..., out]."""

    def __init__(self, settings: MapSettings, shapes: Mapping[str, tuple[int, int]], *, seed: int = 0) -> None:
        """`shapes` are (in, out) of each layer. What is added is 0 until it is trained, because `up` begins with 0."""
        super().__init__()
        self.settings = settings
        generator = torch.Generator().manual_seed(seed)
        self.names = tuple(sorted(shapes))
        self.down = torch.nn.ParameterList()  # [rank, in]
        self.up = torch.nn.ParameterList()  # [out, rank]
        for name in self.names:
            width, out = shapes[name]
            drawn = torch.randn(settings.rank, width, generator=generator) / math.sqrt(width)
            self.down.append(torch.nn.Parameter(drawn))
            self.up.append(torch.nn.Parameter(torch.zeros(out, settings.rank)))

    def part(self, made: Mapping[str, Any]) -> PackPart:
        """Return it as a pack keeps it: 8 bits a number, with a scale for each summand of the rank."""
        kept = {}
        for name, down, up in zip(self.names, self.down, self.up, strict=True):
            for ending, tensor, along in ((_DOWN, down, 1), (_UP, up, 0)):
                numbers, size = _in_8_bits(tensor.detach(), along)
                kept[name + ending], kept[name + ending + _SIZE] = numbers, size
        return PackPart(kept, dataclasses.asdict(self.settings), made)

    @classmethod
    def of_part(cls, part: PackPart) -> LowRankMaps:
        try:
            return cls._of_part(part)
        except NO_PACK as error:
            raise PackError(f"the maps of a pack cannot be made: {error}") from error

    @classmethod
    def _of_part(cls, part: PackPart) -> LowRankMaps:
        names = [name.removesuffix(_DOWN) for name in part.tensors if name.endswith(_DOWN)]
        shapes = {name: (part.tensors[name + _DOWN].shape[1], part.tensors[name + _UP].shape[0]) for name in names}
        settings = MapSettings(**part.settings)
        ranks = {
            rank
            for name in names
            for rank in (*part.tensors[name + _DOWN].shape[:1], *part.tensors[name + _UP].shape[1:])
        }
        if ranks - {settings.rank}:
            raise PackError("its tensors do not have the rank that its settings say")
        adapter = cls(settings, shapes)
        for name, down, up in zip(adapter.names, adapter.down, adapter.up, strict=True):
            for ending, own in ((_DOWN, down), (_UP, up)):
                size = part.tensors.get(name + ending + _SIZE)  # earlier packs have 16 bits a number, and none
                own.data.copy_(part.tensors[name + ending].float() * (1.0 if size is None else size))
        adapter.requires_grad_(requires_grad=False)
        return adapter


def _in_8_bits(tensor: torch.Tensor, along: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whole numbers of the same shape, and the scale for each slice along a dimension."""
    size = tensor.float().abs().amax(dim=along, keepdim=True).clamp(min=1e-12) / 127
    return (tensor.float() / size).round().to(torch.int8), size


def mapped_layers(model: torch.nn.Module) -> dict[str, tuple[int, int]]:
    """Return (in, out) of the linear layers that get maps: all of the decoder's, not the output embeddings."""
    get: Any = getattr(model, "get_output_embeddings", None)
    output = None if get is None else get()
    return {
        name: (module.in_features, module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not output
    }


_own = threading.local()


def adapted() -> bool:
    """Return whether an adapter is at work for this thread, so that it computes other things than other threads do."""
    return getattr(_own, "at_work", 0) > 0


class AttachedMaps:
    """An adapter beside the layers of a model. The model is not changed, and the adapter works in `active` alone.

    It works for the thread that is in `active`. Only one that is trained works for all: a backward pass may compute
    layers anew, in a thread of torch's own.
    """

    def __init__(self, adapter: LowRankMaps, model: torch.nn.Module) -> None:
        """Raise ModelMismatchError where a layer is missing, or has another shape."""
        modules = dict(model.named_modules())
        self._scale = adapter.settings.scale
        self._pairs: list[tuple[torch.nn.Module, torch.Tensor, torch.Tensor]] = []
        floating = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        for name, down, up in zip(adapter.names, adapter.down, adapter.up, strict=True):
            layer = modules.get(name)
            shape = (getattr(layer, "in_features", None), getattr(layer, "out_features", None))
            if layer is None or shape != (down.shape[1], up.shape[0]):
                raise ModelMismatchError(f"the adapter has maps for {name}, {down.shape[1]} to {up.shape[0]}; {shape}")
            if not down.requires_grad:  # what is trained stays where the optimizer has it
                device = next(layer.parameters()).device
                down, up = down.to(device, floating), up.to(device, floating)
            self._pairs.append((layer, down, up))

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context manager: the model's layers add what the adapter computes, in this thread's forwards."""
        thread = threading.get_ident()
        with contextlib.ExitStack() as undo:
            for layer, down, up in self._pairs:
                undo.callback(register_hook(layer.register_forward_hook, self._adding(down, up, thread)).remove)
            _own.at_work = getattr(_own, "at_work", 0) + 1
            try:
                yield
            finally:
                _own.at_work -= 1

    def _adding(self, down: torch.Tensor, up: torch.Tensor, thread: int) -> Any:
        def add(layer: torch.nn.Module, value: tuple[torch.Tensor, ...], out: torch.Tensor) -> torch.Tensor | None:
            if threading.get_ident() != thread and not down.requires_grad:
                return None  # as it is
            added = self._scale * (value[0] @ down.to(value[0].dtype).T) @ up.to(value[0].dtype).T
            return out + added.to(out.dtype)

        return add
