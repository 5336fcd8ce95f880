"""Makes a model whose matrices stay in the blocks of its GGUF file, which is mapped and not converted.

Names, shapes and the order of rows are those of transformers' own way to load such a file: its table of names, and its
processors of tensors, are applied. A processor that puts rows into another order is found out with the rows' numbers.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.models.block_layers import BlockEmbedding, BlockLinear, can_be_blocks, over_blocks
from everlong.models.gguf_checks import require_all
from everlong.models.gguf_reader import GgufReader, ModelFileError, Tensor


def has_blocks(reader: GgufReader) -> bool:
    """Return whether a file has matrices in blocks that everlong multiplies with, and an architecture that it knows."""
    gguf: Any = importlib.import_module("transformers.integrations.gguf")
    architecture = reader.architecture
    # These have conversions of another kind in transformers, as experts have.
    is_other = architecture in gguf.GGUF_CONFIG_ARCHS or any(len(tensor.sizes) > 2 for tensor in reader.tensors)
    return not is_other and any(_is_matrix_of_blocks(tensor) for tensor in reader.tensors)


def block_model(reader: GgufReader, config: Any, dtype: torch.dtype) -> Any | None:
    """Return a model (in evaluation mode) over the file's blocks; None where transformers alone can make it.

    What is no matrix in blocks, such as norms and biases, has `dtype`, and so has what layers return. Raises
    ModelFileError where the file's tensors are not those of the model that it describes.
    """
    import transformers

    config.dtype = dtype
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    files: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    architecture = reader.architecture
    known = config.to_dict()
    if reader.value(f"{architecture}.attention.head_count_kv") is None:
        known.pop("num_key_value_heads", None)  # transformers then leaves rows as they are
    processor = files.TENSOR_PROCESSORS.get(architecture, files.TensorProcessor)(config=known)
    names: Mapping[str, str] = files.get_gguf_hf_weights_map(model, processor)
    mapped = torch.from_file(str(reader.file), shared=False, size=reader.file.stat().st_size, dtype=torch.uint8)
    for tensor in reader.tensors:
        if tensor.name in names and not _put(model, names[tensor.name], tensor, processor, mapped, dtype):
            return None
    _tie(model)
    _fill_buffers(model)
    require_all(reader, [name for name, parameter in model.named_parameters() if parameter.device.type == "meta"])
    return model.eval()


def _is_matrix_of_blocks(tensor: Tensor) -> bool:
    return len(tensor.sizes) == 2 and _core.block_shape(tensor.type) != (0, 0)


def _put(
    model: torch.nn.Module, name: str, tensor: Tensor, processor: Any, mapped: torch.Tensor, dtype: torch.dtype
) -> bool:
    """Give a model a tensor of the file. Return False where that takes more than a new order of its rows."""
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    wanted = getattr(module, own)
    if own == "weight" and _is_matrix_of_blocks(tensor) and can_be_blocks(module):
        rows = _rows(tensor, processor)
        if rows is not None:
            _require_shape(name, tensor, tensor.sizes, wanted.shape)
            model.set_submodule(path, over_blocks(module, _blocks(tensor, mapped, rows), tensor.type, dtype))
            return True
    import gguf

    done = processor.process(
        weights=gguf.dequantize(tensor.data, tensor.tensor_type),
        name=tensor.name,
        tensor_key_mapping={},
        parsed_parameters={"tensors": {}},
    )
    if done.name != tensor.name:
        return False
    numbers = torch.from_numpy(np.array(done.weights)).to(dtype)
    _require_shape(name, tensor, numbers.shape, wanted.shape)
    setattr(module, own, _kept(numbers))
    return True


def _rows(tensor: Tensor, processor: Any) -> np.ndarray | None:
    """Return the order in which the model has the rows of a matrix; None where it has other numbers than the file."""
    numbers = np.arange(tensor.sizes[0], dtype=np.float64)[:, None]
    try:
        done = processor.process(
            weights=numbers, name=tensor.name, tensor_key_mapping={}, parsed_parameters={"tensors": {}}
        )
    except ValueError:  # it takes a matrix of another shape
        return None
    if done.name != tensor.name or done.weights.shape != numbers.shape:
        return None
    rows: np.ndarray = done.weights[:, 0].astype(np.int64)
    return rows if np.array_equal(np.sort(done.weights[:, 0]), numbers[:, 0]) else None


def _blocks(tensor: Tensor, mapped: torch.Tensor, rows: np.ndarray) -> torch.nn.Parameter:
    """Return the blocks [N, bytes of a row], mapped; copied where the model has the rows in another order."""
    blocks = mapped[tensor.offset : tensor.offset + tensor.bytes].view(tensor.sizes[0], -1)
    if not np.array_equal(rows, np.arange(len(rows))):
        blocks = blocks[torch.from_numpy(rows)]
    return _kept(blocks)


def _kept(numbers: torch.Tensor) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(numbers, requires_grad=False)
    parameter.__dict__["_is_hf_initialized"] = True  # transformers leaves it as it is
    return parameter


def _require_shape(name: str, tensor: Tensor, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if tuple(shape) != tuple(wanted):
        raise ModelFileError(
            f"'{tensor.file}': its tensor {tensor.name} is {tuple(shape)}, and {name} of the model that it describes "
            f"is {tuple(wanted)}"
        )


def _tie(model: Any) -> None:
    """Let layers share what the model ties, such as output and input embeddings."""
    for target, source in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        path, _, own = target.rpartition(".")
        module, other = model.get_submodule(path), model.get_submodule(source.rpartition(".")[0])
        if getattr(module, own).device.type != "meta":
            continue
        weight = getattr(other, source.rpartition(".")[2])
        if isinstance(other, BlockEmbedding | BlockLinear) and type(module) is torch.nn.Linear:
            model.set_submodule(path, BlockLinear(weight, other.format, module.bias))
        else:
            setattr(module, own, weight)


@torch.no_grad()
def _fill_buffers(model: Any) -> None:
    """Compute the buffers that are in no file, such as RoPE's frequencies, as transformers does when it loads a model.

    Raises ModelFileError for a module that leaves one without numbers.
    """
    for path, module in model.named_modules():
        made = {name: buffer for name, buffer in module._buffers.items() if buffer is not None and buffer.is_meta}
        for name, buffer in made.items():
            empty = torch.zeros_like(buffer, device="cpu")
            module._buffers[name] = empty.fill_(torch.nan) if empty.is_floating_point() else empty
        if made:
            model._init_weights(module)
        for name in made:
            if not torch.isfinite(module._buffers[name]).all():
                raise ModelFileError(f"{path}.{name} is in no GGUF file, and the model does not compute it")
