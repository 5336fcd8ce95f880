"""Where a memory keeps what was chosen of a block: its tensors, named after who wrote them (docs/format.md)."""

from __future__ import annotations

from collections.abc import Mapping

_PREFIX = "kept."
TOKENS = _PREFIX + "tokens"  # which tokens were chosen


def payload_name(writer: str | None) -> str:
    """Of the chosen tokens' keys and values: as they were read, or as a writer, by what tells it apart, made them."""
    return _PREFIX + "kv" if writer is None else f"{_PREFIX}kv.{writer}"


def kept_bytes(tensor_bytes: Mapping[str, int]) -> int:
    """Of all that blocks carry, by the names of tensors: what chosen tokens take, whoever chose or wrote them."""
    return sum(size for name, size in tensor_bytes.items() if name.startswith(_PREFIX))
