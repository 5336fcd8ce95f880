"""What a frame costs: every byte of KV and other state that it holds while it reads, known before it is made."""

from __future__ import annotations

import dataclasses

from everlong.config import MemoryConfig
from everlong.errors import CapacityError
from everlong.models.attach import AttachedModel


@dataclasses.dataclass(frozen=True)
class FrameBytes:
    """Upper bounds, in bytes.

    They leave out what a forward itself computes, and the block or span that is being archived or dropped. They leave
    out, too, the copy of the zones that a question changes, while one is asked that leaves no trace.
    """

    slots: int  # the buffers of the full-attention layers, made once
    long_lived: int  # copies of sinks, anchor zone and kept tokens, used whenever the front is laid anew
    own_layers: int  # sliding windows and linear attention; the widest counts twice, because an update makes it anew

    @property
    def total(self) -> int:
        return self.slots + self.long_lived + self.own_layers


def frame_bytes(served: AttachedModel, config: MemoryConfig) -> FrameBytes:
    """Return what a frame of this config needs for this model, also while reading."""
    slot = served.kv_token_bytes + 4 * served.rope.rotary_dim  # K and V, cos and sin
    numbers = served.kv_token_bytes // served.dtype.itemsize  # of K and V
    # Masters are fp32. While the zone changes, the old ones stand beside the new.
    zone = config.frame.anchor_zone_tokens * (slot + 2 * 4 * numbers)
    return FrameBytes(
        slots=config.frame.tokens * slot,
        long_lived=config.frame.sink_tokens * slot + zone + config.frame.kept_tokens * slot,
        own_layers=served.own_state.bytes(config.frame.chunk_tokens),
    )


def require_budget(served: AttachedModel, config: MemoryConfig) -> None:
    """Raise CapacityError, saying what is needed and what would fit, where the frame exceeds `frame.bytes`."""
    if config.frame.bytes is None:
        return
    need = frame_bytes(served, config)
    if need.total <= config.frame.bytes:
        return
    slot = need.slots // config.frame.tokens
    fits = (config.frame.bytes - need.long_lived - need.own_layers) // slot
    advice = f"frame.tokens={fits:,} fits" if fits > 0 else "that is too little for any frame of this config"
    raise CapacityError(
        f"frame.bytes={config.frame.bytes:,}, and a frame of {config.frame.tokens:,} tokens needs {need.total:,}: "
        f"{need.slots:,} for its slots, {need.long_lived:,} for sinks, anchors and kept tokens, "
        f"{need.own_layers:,} for layers with a state of their own; {advice}"
    )
