"""Where a memory keeps a block's chosen tokens: its tensors, named after their writer (docs/format.md)."""

from __future__ import annotations

from collections.abc import Mapping

_PREFIX = "kept."
TOKENS = _PREFIX + "tokens"  # which tokens were chosen


def payload_name(writer: str | None) -> str:
    """Return the name of the payload of chosen tokens: as they were read (None), or as that writer made them."""
    return _PREFIX + "kv" if writer is None else f"{_PREFIX}kv.{writer}"


def kept_bytes(tensor_bytes: Mapping[str, int]) -> int:
    """Return the bytes of chosen tokens by all writers, among the blocks' tensors by name."""
    return sum(size for name, size in tensor_bytes.items() if name.startswith(_PREFIX))
