"""The fingerprint of a model as it stands: what a memory of it depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from everlong.memory.fingerprint import Fingerprint
from everlong.models.attach import ServedModel
from everlong.models.served import Served

_SAMPLES = 64
_TEXT_ALONE = "text alone"


def fingerprint(served: Served, tokenizer: Any) -> Fingerprint:
    """The fingerprint of a model as it stands now. Of text alone only the tokenizer counts."""
    if served.keyed is None:
        return Fingerprint(_TEXT_ALONE, _TEXT_ALONE, _tokenizer(tokenizer))
    return Fingerprint(weights_fingerprint(served.model), _rope(served.keyed), _tokenizer(tokenizer))


def _rope(served: ServedModel) -> str:
    """The one table of all layers; of a model with several kinds of layers, a digest of how each of them rotates."""
    if served.rotated == served.layers and not served.sliding:
        return served.rope.fingerprint()
    digest = hashlib.sha256()
    tables = {index: served.table(layer) for layer, index in enumerate(served.archived)} | dict(served.sliding)
    for index, table in sorted(tables.items()):
        digest.update(f"{index} {table.fingerprint()}\n".encode())
    return digest.hexdigest()


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Of a model's weights as they stand now, and of its adapters which ones are at work.

    Weights are sampled: name, shape and 64 evenly spaced elements of every parameter, rounded to bf16, so that a model
    loaded in fp32 and in bf16 is the same model and a model of many gigabytes costs milliseconds.
    """
    digest = hashlib.sha256()
    for name, tensor in _plain_tensors(sorted(model.named_parameters())):
        flat = tensor.detach().reshape(-1)
        count, last = min(_SAMPLES, flat.numel()), max(flat.numel() - 1, 0)
        places = torch.linspace(0, last, count, dtype=torch.float64, device="cpu").long()
        sample = flat[places.to(flat.device)].to(device="cpu", dtype=torch.bfloat16).view(torch.int16)
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(sample.numpy().tobytes())
    for layer in adapters_at_work(model):
        digest.update(layer.encode())
    return digest.hexdigest()


def _plain_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Those that are made of others, as torchao's quantized weights of codes and scales, stand as these do."""
    for name, tensor in named:
        if not hasattr(tensor, "__tensor_flatten__"):
            yield name, tensor
            continue
        parts, _ = tensor.__tensor_flatten__()
        yield from _plain_tensors((f"{name}.{part}", getattr(tensor, part)) for part in parts)


def adapters_at_work(model: torch.nn.Module) -> list[str]:
    """Of each layer that has adapters: its name, and which of them are at work."""
    found = []
    for name, module in model.named_modules():
        active = getattr(module, "active_adapters", None)
        if isinstance(active, list | tuple):  # a layer of peft; a model of transformers has a method of that name
            at_work = [] if getattr(module, "disable_adapters", False) else list(active)
            found.append(f"{name} {at_work}")
    return found


def _tokenizer(tokenizer: Any) -> str:
    digest = hashlib.sha256()
    for token, index in sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{index} {token}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
