"""Settings of the frame: the budgets of its zones, in tokens."""

from __future__ import annotations

import dataclasses

import everlong._core as _core
from everlong.config.settings import Settings

_OS = _core.MemoryOsConfig()  # the Memory OS owns these defaults (cpp/os/include/everlong/os/*.h)


@dataclasses.dataclass(frozen=True)
class FrameConfig(Settings, group="frame", least={"chunk_tokens": 1}):
    """The zones, in their order in the frame. The defaults are those that answered best on a real model."""

    tokens: int = _OS.frame_tokens  # F: everything the model attends to; at most its trained window
    sink_tokens: int = _OS.sink_tokens  # S: the stream's first tokens, never evicted
    tombstones: int = _OS.tombstones  # slots behind the sinks; each stands for a span that left; 0: off
    anchor_tokens: int = _OS.anchor_tokens  # first tokens of a topic that stay behind the sinks when it leaves; 0: off
    anchors: int = _OS.anchors  # how many topics, the newest, keep their first tokens
    # N: slots for chosen tokens of closed blocks, which stay when the others leave; 0: off. A part chooses them, or
    # else the newest tokens of each block stay. The oldest blocks' tokens are trimmed again, rung by rung to half.
    kept_tokens: int = _OS.kept_tokens
    kept_share: int = _OS.kept_share  # one in so many tokens of a block is kept when it closes
    # Rungs that kept tokens go down, each with as many slots. 4, with kept_share 8: 64, 32, 16, 8 of a block of 512.
    kept_rungs: int = _OS.kept_rungs
    recalled_tokens: int = _OS.recalled_tokens  # R: budget of the recalled zone
    rolling_tokens: int = _OS.rolling_tokens  # M: the newest tokens
    evict_tokens: int = _OS.evict_tokens  # rolling is cut back to M once it is over by so many tokens
    chunk_tokens: int = 512  # tokens per forward while reading
    # Budget in bytes of all that the frame holds on the device, also while reading (frame/budget.py); None: no limit.
    bytes: int | None = None

    @property
    def anchor_zone_tokens(self) -> int:
        """A: slots of the zone behind the sinks."""
        return self.anchor_tokens * self.anchors + self.tombstones
