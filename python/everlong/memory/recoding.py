"""A memory coded anew: what it takes, and the work, block by block.

A block is coded anew as a whole or not at all, whatever happens meanwhile. What is done already is passed over, so
doing it again goes on where it stopped. The old bytes are given back now and then, so that both never lie there.
"""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Callable

import everlong._core as _core
from everlong.errors import CapacityError

_ROUND_BYTES = 256 << 20  # of new payload, after which the old one is given back


@dataclasses.dataclass(frozen=True)
class RecodingPlan:
    """What it takes to code a memory anew."""

    codec: str
    blocks: tuple[int, ...]  # ids of those that are coded otherwise
    old_bytes: int  # of their payload, as it is
    new_bytes: int  # as it will be
    room_bytes: int  # that disk or RAM must have free meanwhile


def named(core: _core.Memory, codec: str) -> str:
    """Return the codec's own name: "transform" is that of the tables that the memory has. ValueError without tables."""
    if codec != "transform":
        return codec
    tables = core.manifest().attributes.get("transform")
    if tables is None:
        raise ValueError(
            "this memory has no tables of a transform: give compact the tables that everlong.codecs.transform fits "
            "to its model, or use `everlong compact --codec transform`, which fits them"
        )
    return tables


def plan(core: _core.Memory, codec: str) -> RecodingPlan:
    """Return what coding a memory anew takes. ValueError for a codec that is none, or where there is no payload.

    How much a transform takes depends on what is coded: `new_bytes` is then more than it ever was. It passes over
    blocks with sinks: their values are so small that its steps, which fit other tokens, are errors as large as they
    are, and every later token attends to them.
    """
    manifest = core.manifest()
    if manifest.layers == 0:
        raise ValueError(f"codec is {codec!r}, but this memory holds text alone, which no codec codes: give none")
    transforms = codec.startswith("transform.")
    sized = "int8" if transforms else codec
    core.page_bytes(1, sized)  # refuses what is no codec
    blocks, old, new, largest = [], 0, 0, 0
    for info in core.blocks.infos():
        if core.blocks.codec(info.id) == codec or (transforms and info.sink_tokens > 0):
            continue
        full, rest = divmod(info.end - info.begin, manifest.page_tokens)
        of_block = full * core.page_bytes(manifest.page_tokens, sized) + (core.page_bytes(rest, sized) if rest else 0)
        blocks.append(info.id)
        old, new, largest = old + info.payload_bytes, new + of_block, max(largest, of_block)
    return RecodingPlan(codec, tuple(blocks), old, new, min(new, _ROUND_BYTES + largest))


def check_room(recoding: RecodingPlan, folder: str) -> None:
    """Raise CapacityError where the disk of a memory's folder has no room to code it anew."""
    free = shutil.disk_usage(pathlib.Path(folder)).free
    if recoding.room_bytes > free:
        raise CapacityError(
            f"coding this memory as {recoding.codec} needs {recoding.room_bytes / 1e6:,.0f} MB of disk meanwhile, "
            f"{folder} has {free / 1e6:,.0f} MB: free some, or forget something first"
        )


def recode(core: _core.Memory, recoding: RecodingPlan, progress: Callable[[int], None] | None = None) -> int:
    """Code blocks anew. Return how many bytes were given back, less those that were written.

    `told` is called with the old bytes of each block, once it is done.
    """
    before, written = core.upkeep.stats().payload_bytes, 0
    given_back = core.upkeep.compact()
    sizes = {info.id: info.payload_bytes for info in core.blocks.infos()}
    for block in recoding.blocks:
        if block not in sizes:  # forgotten meanwhile
            continue
        core.upkeep.recode(block, recoding.codec)
        written += core.blocks.info(block).payload_bytes
        if progress is not None:
            progress(sizes[block])
        if written >= _ROUND_BYTES:
            core.upkeep.compact()
            written = 0
    core.upkeep.compact()
    return given_back + before - core.upkeep.stats().payload_bytes
