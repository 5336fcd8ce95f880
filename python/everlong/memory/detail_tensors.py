"""Where a memory keeps Detail Tokens: a tensor of each block, named after their writer (docs/format.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_PREFIX = "details."


def tensor_name(writer: str) -> str:
    """Return the tensor's name. `writer` tells a writer's Detail Tokens from another's."""
    return _PREFIX + writer


def are_details(dtype: str, shape: Sequence[int], hidden_size: int) -> bool:
    """Return whether a tensor holds a model's Detail Tokens: F16 [n, hidden size], n >= 1, in safetensors' names."""
    return dtype == "F16" and len(shape) == 2 and shape[0] > 0 and shape[1] == hidden_size


def detail_bytes(tensor_bytes: Mapping[str, int]) -> int:
    """Return the bytes of Detail Tokens by all writers, among the blocks' tensors by name."""
    return sum(size for name, size in tensor_bytes.items() if name.startswith(_PREFIX))
