"""The fingerprint of a model as it stands: what a memory of it depends on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from everlong.memory.fingerprint import Fingerprint
from everlong.models.adapters import Adapters, adapters_of
from everlong.models.attach import AttachedModel
from everlong.models.block_layers import decoded_at, decoded_shape, formats_of
from everlong.models.model_interface import ModelInterface
from everlong.models.rope import NO_ROPE, RopeTable, has_layer_tables, rope_table, short_lengths
from everlong.models.weights import buffered_weights, plain_tensors

_SAMPLES = 64
_TEXT_ALONE = "text alone"


def fingerprint(attached: ModelInterface, tokenizer: Any) -> Fingerprint:
    """Return the fingerprint of a model as it stands now. For text alone only the tokenizer counts."""
    if attached.keyed is None:
        return Fingerprint(_TEXT_ALONE, _TEXT_ALONE, _tokenizer(tokenizer))
    return Fingerprint(weights_fingerprint(attached.model), _rope(attached.keyed), _tokenizer(tokenizer))


def is_noted_as(attached: ModelInterface, rope: str) -> bool:
    """Return whether an earlier everlong noted a memory of this model so: by the longrope table of its frame."""
    return attached.keyed is not None and rope in _tables(attached.keyed)


def _rope(attached: AttachedModel) -> str:
    """Return how a model rotates, whatever its frame is.

    A longrope table depends on the frame, and un-rotated keys do not. So all of the model's tables count.
    """
    tables = _tables(attached)
    return tables[0] if len(tables) == 1 else hashlib.sha256("\n".join(tables).encode()).hexdigest()


def _tables(attached: AttachedModel) -> list[str]:
    """Return how a model rotates in each of its frames, from the shortest on: one text, or several by longrope."""
    config = attached.model.config.get_text_config(decoder=True)
    return [_in_frame(attached, config, tokens) for tokens in (*sorted(short_lengths(config)), attached.window)]


def _in_frame(attached: AttachedModel, config: Any, frame_tokens: int) -> str:
    """Return the one table of all layers, or a digest of how each kind of layers rotates.

    A window's state has rotated keys: layers with one count as they rotate in the frame at work.
    """
    types = config.layer_types if has_layer_tables(config) else [None] * config.num_hidden_layers

    def table(index: int) -> RopeTable:
        return rope_table(config, types[index], frame_tokens)

    if attached.rotated == attached.layers and not attached.sliding:
        return table(attached.archived[0]).fingerprint()
    digest = hashlib.sha256()
    archived = {index: table(index) if at < attached.rotated else NO_ROPE for at, index in enumerate(attached.archived)}
    for index, one in sorted((archived | dict(attached.sliding)).items()):
        digest.update(f"{index} {one.fingerprint()}\n".encode())
    return digest.hexdigest()


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Return the fingerprint of a model's weights as they stand now, with the adapters at work that its keys depend on.

    Weights are sampled: name, shape and 64 evenly spaced elements of every parameter, rounded to bf16. So a model
    loaded in fp32 and in bf16 is the same model, and a model of many gigabytes costs milliseconds. So is one over the
    blocks of a GGUF file, and the same file unpacked: its numbers are decoded. Other codes that are packed into wider
    integers count as they are. Weights that layers keep in buffers count, too.
    """
    adapters = adapters_of(model)
    formats = formats_of(model)
    digest = hashlib.sha256()
    for kept in (model.named_parameters(), buffered_weights(model)):
        for name, tensor in _counted(kept, adapters):
            format = formats.get(id(tensor))
            shape = tuple(tensor.shape) if format is None else decoded_shape(tensor, format)
            digest.update(f"{name} {shape}".encode())
            digest.update(_sample(tensor, format).view(torch.uint8).numpy().tobytes())
    for layer in adapters.active:
        digest.update(layer.encode())
    return digest.hexdigest()


def _counted(named: Iterable[tuple[str, torch.Tensor]], adapters: Adapters) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield weights in the order of their names: the model's own names where keys do not depend on an adapter."""
    known = {adapters.name_of(name): tensor for name, tensor in named}
    yield from plain_tensors((name, known[name]) for name in sorted(name for name in known if name is not None))


def _sample(tensor: torch.Tensor, format: int | None) -> torch.Tensor:
    """Return elements of a tensor; with a `format` of the matrix whose blocks it is."""
    flat = tensor.detach().reshape(-1)
    size = flat.numel() if format is None else math.prod(decoded_shape(tensor, format))
    count, last = min(_SAMPLES, size), max(size - 1, 0)
    places = torch.linspace(0, last, count, dtype=torch.float64, device="cpu").long()
    if format is not None:
        return decoded_at(tensor, format, places).to(torch.bfloat16)
    packed = not tensor.is_floating_point() and tensor.itemsize > 1  # several codes; rounding may lose none
    return flat[places.to(flat.device)].to(device="cpu", dtype=torch.int64 if packed else torch.bfloat16)


def _tokenizer(tokenizer: Any) -> str:
    pairs = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    lines = "".join(f"{index} {token}\n" for index, token in pairs)
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()
