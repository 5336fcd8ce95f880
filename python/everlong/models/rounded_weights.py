"""Rounds the matrices of a model to blocks of 8 or 4 bits, as GGUF files have them: `load(..., weights="int4")`."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.errors import EverlongError
from everlong.models.block_layers import can_be_blocks, over_blocks

_Q4_1, _Q8_0 = 3, 8
# What linear layers are rounded to. Embeddings and the output head are rounded to 8 bits: 4 would cost them most.
FORMATS = {"int8": _Q8_0, "int4": _Q4_1}
_ROWS_AT_ONCE = 4_096
_NOTED = "_everlong_weights"  # an attribute of a rounded model


def require_rounding(weights: str) -> None:
    """Raise ValueError for a name that is none of FORMATS."""
    if weights not in FORMATS:
        raise ValueError(f"weights is {weights!r}, expected one of {', '.join(FORMATS)}")


@torch.no_grad()
def round_weights(model: Any, weights: str) -> Any:
    """Round the matrices of a model on the CPU in place, and make all other weights fp32. Return it.

    A matrix whose rows are no whole number of blocks stays as it is. Raises ValueError for a name that is none of
    FORMATS, for a model that is quantized already, and for one whose weights are for the most part no such matrices.
    """
    require_rounding(weights)
    if getattr(model, "quantization_method", None) is not None:
        raise ValueError(f"weights={weights!r} rounds the matrices of a model, and this one is quantized already")
    total = sum(parameter.numel() for parameter in model.parameters())
    chosen = {path: module for path, module in model.named_modules() if _can_be_rounded(module)}
    distinct = {id(module.weight): module.weight.numel() for module in chosen.values()}
    if 2 * sum(distinct.values()) < total:
        raise ValueError(
            f"weights={weights!r} rounds matrices of linear layers and embeddings, and this model's weights are mostly "
            "others, such as those of experts; load it without weights="
        )
    head = model.get_output_embeddings()
    precise = {id(module.weight) for module in chosen.values() if isinstance(module, torch.nn.Embedding)}
    precise |= {id(head.weight)} if head is not None else set()
    made: dict[int, tuple[torch.nn.Parameter, torch.nn.Parameter]] = {}  # with the old ones, whose ids they keep
    for path, module in chosen.items():
        old = module.weight
        format = _Q8_0 if id(old) in precise else FORMATS[weights]
        if id(old) not in made:
            made[id(old)] = old, torch.nn.Parameter(_rounded(old, format), requires_grad=False)
            old.data = old.data.new_empty(0)
        model.set_submodule(path, over_blocks(module, made[id(old)][1], format, torch.float32))
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.float()
    model.config.dtype = torch.float32
    setattr(model, _NOTED, weights)
    return model


def rounding_of(model: Any) -> str:
    """Return what a model was rounded to: a name of FORMATS, or "" for none."""
    return str(getattr(model, _NOTED, ""))


def _can_be_rounded(module: torch.nn.Module) -> bool:
    elements, _ = _core.block_shape(_Q8_0)
    columns = module.in_features if isinstance(module, torch.nn.Linear) else getattr(module, "embedding_dim", 1)
    return can_be_blocks(module) and columns % elements == 0


def _rounded(matrix: torch.Tensor, format: int) -> torch.Tensor:
    """Return the blocks uint8 [N, bytes of a row] of a matrix [N, K]."""
    try:
        quants: Any = importlib.import_module("gguf.quants")
    except ImportError:
        raise EverlongError('weights= rounds with a package that is missing: pip install "gguf>=0.17"') from None
    elements, size = _core.block_shape(format)
    blocks = np.empty((matrix.shape[0], matrix.shape[1] // elements * size), dtype=np.uint8)
    for first in range(0, matrix.shape[0], _ROWS_AT_ONCE):
        rows = matrix[first : first + _ROWS_AT_ONCE].detach().to(device="cpu", dtype=torch.float32).numpy()
        blocks[first : first + len(rows)] = quants.quantize(rows, quants.GGMLQuantizationType(format))
    return torch.from_numpy(blocks)
