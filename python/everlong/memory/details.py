"""Where a memory keeps Detail Tokens: a tensor of each block, named after who wrote them (docs/format.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_PREFIX = "details."


def tensor_name(writer: str) -> str:
    """`writer`: what tells a writer's Detail Tokens from another one's."""
    return _PREFIX + writer


def are_details(dtype: str, shape: Sequence[int], hidden_size: int) -> bool:
    """Whether a tensor, as safetensors names its dtype, is Detail Tokens of a model: F16 [n, hidden size], n >= 1."""
    return dtype == "F16" and len(shape) == 2 and shape[0] > 0 and shape[1] == hidden_size


def detail_bytes(tensor_bytes: Mapping[str, int]) -> int:
    """Of all that blocks carry, by the names of tensors: what Detail Tokens take, whoever wrote them."""
    return sum(size for name, size in tensor_bytes.items() if name.startswith(_PREFIX))
