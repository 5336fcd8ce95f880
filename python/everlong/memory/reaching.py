"""Vectors of a block that reach into the text before it, where the encoder's first sentence of it may begin."""

from __future__ import annotations

from collections.abc import Collection

import everlong._core as _core
from everlong.errors import MemoryNotFoundError

REACH = 80  # tokens before a block, of the same source, that its vectors may be made of, too
_KINDS = ("encoder.", "sentence.")  # what the names of such tensors begin with (docs/format.md)


def blocks_reaching_into(core: _core.Memory, gone: Collection[int]) -> list[int]:
    """Return the other blocks whose vectors may be made of some of these. MemoryNotFoundError for one that is none."""
    found: dict[int, None] = {}
    for block in map(core.blocks.info, gone):
        at = block.end
        while at < block.end + REACH:
            try:
                other = core.blocks.info(core.blocks.pages_of(block.stream, at, at + 1)[0].block)
            except MemoryNotFoundError:
                break
            if other.source != block.source:
                break
            if other.id not in gone:
                found[other.id] = None
            at = other.end
    return list(found)


def drop_vectors(core: _core.Memory, blocks: Collection[int]) -> None:
    """Drop their vectors. The encoder makes them anew, of what is there then."""
    for block in blocks:
        names = [name for name in core.blocks.tensor_shapes(block) if name.startswith(_KINDS)]
        if names:
            core.blocks.drop_tensors(block, names)
