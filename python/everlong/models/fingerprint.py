"""The fingerprint of a model as it stands: what a memory of it depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from everlong.memory.fingerprint import Fingerprint
from everlong.models.adapters import Adapters, adapters_of
from everlong.models.attach import ServedModel
from everlong.models.served import Served
from everlong.models.weights import buffered_weights, plain_tensors

_SAMPLES = 64
_TEXT_ALONE = "text alone"


def fingerprint(served: Served, tokenizer: Any) -> Fingerprint:
    """Return the fingerprint of a model as it stands now. For text alone only the tokenizer counts."""
    if served.keyed is None:
        return Fingerprint(_TEXT_ALONE, _TEXT_ALONE, _tokenizer(tokenizer))
    return Fingerprint(weights_fingerprint(served.model), _rope(served.keyed), _tokenizer(tokenizer))


def _rope(served: ServedModel) -> str:
    """Return the one table of all layers, or a digest of how each kind of layers rotates."""
    if served.rotated == served.layers and not served.sliding:
        return served.rope.fingerprint()
    digest = hashlib.sha256()
    tables = {index: served.table(layer) for layer, index in enumerate(served.archived)} | dict(served.sliding)
    for index, table in sorted(tables.items()):
        digest.update(f"{index} {table.fingerprint()}\n".encode())
    return digest.hexdigest()


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Return the fingerprint of a model's weights as they stand now, with the adapters at work that its keys depend on.

    Weights are sampled: name, shape and 64 evenly spaced elements of every parameter, rounded to bf16. So a model
    loaded in fp32 and in bf16 is the same model, and a model of many gigabytes costs milliseconds. Codes that are
    packed into wider integers count as they are. Weights that layers keep in buffers count, too.
    """
    adapters = adapters_of(model)
    digest = hashlib.sha256()
    for kept in (model.named_parameters(), buffered_weights(model)):
        for name, tensor in _counted(kept, adapters):
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(_sample(tensor).view(torch.uint8).numpy().tobytes())
    for layer in adapters.at_work:
        digest.update(layer.encode())
    return digest.hexdigest()


def _counted(named: Iterable[tuple[str, torch.Tensor]], adapters: Adapters) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield weights in the order of their names: the model's own names where keys do not depend on an adapter."""
    known = {adapters.name_of(name): tensor for name, tensor in named}
    yield from plain_tensors((name, known[name]) for name in sorted(name for name in known if name is not None))


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    count, last = min(_SAMPLES, flat.numel()), max(flat.numel() - 1, 0)
    places = torch.linspace(0, last, count, dtype=torch.float64, device="cpu").long()
    packed = not tensor.is_floating_point() and tensor.itemsize > 1  # several codes; rounding may lose none
    return flat[places.to(flat.device)].to(device="cpu", dtype=torch.int64 if packed else torch.bfloat16)


def _tokenizer(tokenizer: Any) -> str:
    digest = hashlib.sha256()
    for token, index in sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{index} {token}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
