"""Vectors of a block that reach into the text before it, where the encoder's first sentence of it may begin.

Whoever forgets drops them right behind the commit. It may be cut short there: by a kill, or by a full disk. So the
memory notes up to which forgetting that was done, and the next opening to write, or `compact`, does what is left.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Collection, Iterator

import everlong._core as _core
from everlong.errors import MemoryNotFoundError

REACH = 80  # tokens before a block, of the same source, that its vectors may be made of, too
_ATTRIBUTE = (
    "vectors"  # in the manifest: how many forgettings the memory had counted when all such vectors were dropped
)
_KINDS = ("encoder.", "sentence.", "passage.")  # what the names of such tensors begin with (docs/format.md)


def overlapping_blocks(core: _core.Memory, gone: Collection[int]) -> list[int]:
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
    """Drop their vectors. The encoder makes them anew, of what is there then. A block that is gone has none."""
    for block in blocks:
        with contextlib.suppress(MemoryNotFoundError):
            names = [name for name in core.blocks.tensor_shapes(block) if name.startswith(_KINDS)]
            if names:
                core.blocks.drop_tensors(block, names)


def note_dropped(core: _core.Memory, forgettings: int) -> None:
    """Note that forgetting number `forgettings` has dropped its vectors, where all before it have."""
    if number_in(core, _ATTRIBUTE) == forgettings - 1 and _has_vectors(core):
        core.set_attribute(_ATTRIBUTE, str(forgettings))


def drop_what_was_left(core: _core.Memory, *, every: bool = False) -> None:
    """Drop vectors that a forgetting which was cut short has left: of all blocks that stand behind a gap.

    `every`: look also where nothing says that one was cut short.
    """
    forgettings, noted = core.forgettings(), number_in(core, _ATTRIBUTE)
    if not every and noted == forgettings:
        return
    if _has_vectors(core):
        drop_vectors(core, list(_behind_gaps(core)))
    elif noted <= forgettings:
        return
    if noted != forgettings:
        core.set_attribute(_ATTRIBUTE, str(forgettings))


def number_in(core: _core.Memory, attribute: str) -> int:
    """Return a number that the manifest notes; 0 where it is missing, -1 where it is none."""
    noted = core.manifest().attributes.get(attribute, "0")
    return int(noted) if noted.isascii() and noted.isdigit() and len(noted) < 20 else -1


def _has_vectors(core: _core.Memory) -> bool:
    return any(name.startswith(_KINDS) for name in core.upkeep.stats().tensor_bytes)


def _behind_gaps(core: _core.Memory) -> Iterator[int]:
    """Yield the blocks whose vectors may be made of what stood in a gap of the stream."""
    ends: dict[int, int] = collections.defaultdict(int)  # of each stream, so far
    runs: dict[int, tuple[str, int | None]] = {}  # its newest run of one source, and where a gap ends that it is behind
    for info in sorted(core.blocks.infos(), key=lambda info: info.begin):
        source, behind = runs.get(info.stream, (info.source, None))
        if info.begin > ends[info.stream]:
            behind = info.begin
        elif info.source != source:
            behind = None
        if behind is not None and info.begin - behind < REACH:
            yield info.id
        ends[info.stream], runs[info.stream] = info.end, (info.source, behind)
