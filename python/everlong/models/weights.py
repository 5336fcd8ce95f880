"""The weights of a model, wherever they are kept, and whether they are still what a memory was begun with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from everlong.errors import ModelMismatchError
from everlong.models.adapters import Adapters, adapters_of

_DIMENSIONS_OF_A_MATRIX = (2, 3)  # the third: its experts


def buffered_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield weights of layers that are no parameters: codes, scales and zeros as AWQ, GPTQ, HQQ and others store them.

    They belong to layers without parts of their own and with more in the checkpoint than their parameters: a matrix
    among the buffers, or what the layer writes. What a model computes for itself (RoPE's frequencies, masks, position
    ids) is in no checkpoint, or no matrix of such a layer. What is written below a parameter's name belongs to that
    parameter. Layers of bitsandbytes in 4 bits write nothing else, and are not asked: on a CPU they compute with
    weights in another order, and lose some of them when they write (0.50).
    """
    for name, module in model.named_modules():
        if next(module.children(), None) is not None or not _writes_more(module) or _is_in_4_bits(module):
            continue
        held: dict[str, Any] = module.state_dict(keep_vars=True)
        more = {
            part: tensor
            for part, tensor in held.items()
            if isinstance(tensor, torch.Tensor) and part.partition(".")[0] not in module._parameters
        }
        if any(part not in module._buffers or _is_matrix(tensor) for part, tensor in more.items()):
            yield from ((f"{name}.{part}", tensor) for part, tensor in more.items())


def _writes_more(module: torch.nn.Module) -> bool:
    own = type(module).state_dict is not torch.nn.Module.state_dict
    own = own or type(module)._save_to_state_dict is not torch.nn.Module._save_to_state_dict
    return own or bool(module._buffers)


def _is_in_4_bits(module: torch.nn.Module) -> bool:
    return any(getattr(parameter, "quant_state", None) is not None for parameter in module.parameters(recurse=False))


def _is_matrix(tensor: torch.Tensor) -> bool:
    return tensor.dim() in _DIMENSIONS_OF_A_MATRIX and min(tensor.shape) > 1 and tensor.dtype != torch.bool


def plain_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors that are made of others, such as torchao's quantized weights, as the codes and scales in them."""
    for name, tensor in named:
        if not hasattr(tensor, "__tensor_flatten__"):
            yield name, tensor
            continue
        parts, _ = tensor.__tensor_flatten__()
        yield from plain_tensors((f"{name}.{part}", getattr(tensor, part)) for part in parts)


class WeightsCheck:
    """The weights and adapters of a model that its keys and values depend on, as they stand when this is made.

    A write shows in torch's count of the writes to each tensor, and in where the tensor lies. Both cost microseconds.
    Neither sees a write through `tensor.data` that leaves the tensor where it is. Parameters of a library's own kind
    may lie elsewhere each time that they compute, as those of bitsandbytes in 4 bits do on a CPU.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        adapters = adapters_of(model)
        self._adapters = adapters.active
        self._written = _written(model, adapters)

    def require_unchanged(self) -> None:
        """Raise ModelMismatchError where other adapters are at work by now, or weights were written to."""
        adapters = adapters_of(self._model)
        if adapters.active != self._adapters:
            raise ModelMismatchError(
                "other adapters are at work in the model than when this MemoryModel was made: put the earlier ones "
                "back, or close it; these adapters need another memory"
            )
        if _written(self._model, adapters) != self._written:
            raise ModelMismatchError(
                "the model's weights were written to, or moved, since this MemoryModel was made, and its memory was "
                "computed with the earlier ones. Close it. The weights as they are now need another memory. Once the "
                "earlier weights are loaded again, another MemoryModel can go on with this memory"
            )


def _written(model: torch.nn.Module, adapters: Adapters) -> tuple[int, int]:
    """Return the writes to all tensors that keys and values depend on, and a sum of where they lie."""
    writes, places = 0, 0
    for _, tensor in plain_tensors(
        (name, tensor) for name, tensor in _weight_tensors(model) if adapters.keys_depend_on(name)
    ):
        writes += 0 if tensor.is_inference() else tensor._version  # made in inference mode, it counts no writes
        if type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            places += tensor.data_ptr()
    return writes, places


def _weight_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters, and the buffers that a checkpoint holds; what is shared, at each of its places."""
    yield from model.named_parameters(remove_duplicate=False)
    for name, module in model.named_modules():
        for part, buffer in module._buffers.items():
            if buffer is not None and part not in module._non_persistent_buffers_set:
                yield f"{name}.{part}", buffer
