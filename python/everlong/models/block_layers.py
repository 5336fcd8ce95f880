"""Layers whose matrices stay in the blocks of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping

import torch

import everlong._core as _core
import everlong.ops as ops


class BlockLinear(torch.nn.Linear):
    """`torch.nn.Linear` over blocks. `weight` is uint8 [out_features, bytes of a row], and is not trained.

    It computes on the CPU, in the dtype of its input.
    """

    def __init__(self, weight: torch.nn.Parameter, format: int, bias: torch.nn.Parameter | None = None) -> None:
        torch.nn.Module.__init__(self)  # Linear's own makes numbers at random
        elements, size = _core.block_shape(format)
        self.in_features = weight.shape[1] // size * elements
        self.out_features = weight.shape[0]
        self.format = format
        self.weight = weight
        self.register_parameter("bias", bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return ops.block_linear(input, self.weight, self.format, self.bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, format={self.format}"


class BlockEmbedding(torch.nn.Embedding):
    """`torch.nn.Embedding` over blocks. `weight` is uint8 [num_embeddings, bytes of a row], and is not trained."""

    def __init__(
        self,
        weight: torch.nn.Parameter,
        format: int,
        padding_idx: int | None,
        dtype: torch.dtype,
        scale: float | None = None,
    ) -> None:
        """With a `scale` rows come multiplied by it, rounded to their dtype."""
        torch.nn.Module.__init__(self)  # Embedding's own makes numbers at random
        elements, size = _core.block_shape(format)
        self.num_embeddings = weight.shape[0]
        self.embedding_dim = weight.shape[1] // size * elements
        self.padding_idx, self.max_norm, self.norm_type = padding_idx, None, 2.0
        self.scale_grad_by_freq, self.sparse = False, False
        self.format = format
        self.scale = scale
        self.weight = weight
        # Its dtype is that of the rows, so that `.to(dtype)` changes it as it changes other layers.
        self.register_buffer("like", torch.empty(0, dtype=dtype, device="cpu"), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the rows."""
        return self.get_buffer("like").dtype

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = ops.block_rows(self.weight, input, self.format, self.dtype)
        return rows if self.scale is None else rows * torch.tensor(self.scale, dtype=self.dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, format={self.format}"


def can_be_blocks(module: torch.nn.Module) -> bool:
    """Return whether `over_blocks` has a layer that does what this one does."""
    return type(module) in (torch.nn.Linear, torch.nn.Embedding) or _scale_of(module) is not None


def over_blocks(
    module: torch.nn.Module, weight: torch.nn.Parameter, format: int, dtype: torch.dtype
) -> BlockLinear | BlockEmbedding:
    """Return a layer that does what `module` does, over the blocks of its weight. `dtype` is that of embeddings."""
    if isinstance(module, torch.nn.Embedding):
        return BlockEmbedding(weight, format, module.padding_idx, dtype, _scale_of(module))
    assert isinstance(module, torch.nn.Linear)
    return BlockLinear(weight, format, module.bias)


def _scale_of(module: torch.nn.Module) -> float | None:
    """Return what a layer such as Gemma's multiplies its embeddings with; None for others."""
    scale = getattr(module, "scalar_embed_scale", None)
    return scale if isinstance(module, torch.nn.Embedding) and isinstance(scale, float) else None


def formats_of(model: torch.nn.Module) -> Mapping[int, int]:
    """Return the format of each weight of a model that is blocks, by the id of the tensor."""
    layers = (module for module in model.modules() if isinstance(module, BlockLinear | BlockEmbedding))
    return {id(layer.weight): layer.format for layer in layers}


def dtype_of_rounding(model: torch.nn.Module, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype whose rounding the results of a model have that computes in `dtype`.

    Layers over blocks code numbers in 8 bits, which do to a result about what bfloat16 does. The least difference of an
    input may turn to the next code, so that results that would differ in the last bit of fp32 differ by as much.
    """
    return torch.bfloat16 if formats_of(model) else dtype


def decoded_shape(blocks: torch.Tensor, format: int) -> tuple[int, int]:
    """Return [N, K] of a matrix whose blocks are uint8 [N, bytes of a row]."""
    elements, size = _core.block_shape(format)
    return blocks.shape[0], blocks.shape[1] // size * elements


def decoded_at(blocks: torch.Tensor, format: int, places: torch.Tensor) -> torch.Tensor:
    """Return elements [n] fp32 of a matrix, by their places [n] in the order of its rows."""
    elements, size = _core.block_shape(format)
    one_a_row = blocks.detach().reshape(-1, size)[places // elements].contiguous()
    rows = ops.block_rows(one_a_row, torch.arange(len(places)), format, torch.float32)
    return rows.gather(1, (places % elements)[:, None])[:, 0]
