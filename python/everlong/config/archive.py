"""Settings of the archive: how what is read is cut into blocks and kept."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, TypeAlias

import everlong._core as _core
from everlong.config.settings import Settings

if TYPE_CHECKING:
    Codec: TypeAlias = str
else:
    Codec = Literal[tuple(codec.name for codec in _core.codecs())]  # those that the core has
TaggerKind = Literal["none", "keyphrases", "model"]

_OS = _core.MemoryOsConfig()  # the Memory OS owns these defaults (cpp/os/include/everlong/os/*.h)


@dataclasses.dataclass(frozen=True)
class ArchiveConfig(Settings, group="archive"):
    """Blocks, their pages, and what grows over them. An existing memory keeps its page length and its codec."""

    block_tokens: int = _OS.block_tokens  # L_max of a block
    least_tokens: int = _OS.least_tokens  # L_min: a turn or a signal ends no shorter block
    cooldown_tokens: int = _OS.cooldown_tokens  # no signal counts for so many tokens after one that came too soon
    page_tokens: Literal[64, 128] = 64  # unit of the index and of recall
    # How keys and values are kept (docs/guides/policies.md). The two plain ones are of memories made before format 3.
    codec: Codec = "e4m3"
    # Bytes of RAM that the memory may keep: indexes, catalog, payload. None: half of what is free when it is opened.
    host_bytes: int | None = None
    # The most bytes of the memory on disk, or of payload in RAM, and for how many seconds a source is kept. After each
    # text that is read the oldest sources beyond that are forgotten and compacted. The newest one stays.
    max_bytes: int | None = None
    keep_for: float | None = None
    # Grow a graph over the blocks, in the background: `memory.graph`. Its vectors are the encoder's where the index has
    # "embedding", else the blocks' keys. A memory of text alone without "embedding" has blocks in time, and no topics.
    graph: bool = False
    # How wide a topic may be: the root mean square distance of its blocks from their mean, as a share of that of all.
    graph_share: float = _core.GRAPH_SHARE
    # Who says what a block is about. "keyphrases", as it is archived: its own words that are rare in the memory
    # (text/keyphrases.py). "model", in the background: the model itself, after the block's first tokens
    # (retrieval/model_tags.py). A user's own tags (`read(tags=)`) count beside them.
    tagger: TaggerKind = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_bytes", "keep_for"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value}, expected above 0; None keeps all")
        if not 0 < self.graph_share <= 1:
            raise ValueError(f"graph_share is {self.graph_share}, expected above 0, at most 1")
