"""A frame of keys and values: the model attends to slots of a ResidentCache."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch

from everlong.config import MemoryConfig
from everlong.frame.budget import require_budget
from everlong.frame.frame import Frame
from everlong.frame.kv_zones import KvZones
from everlong.frame.parts import Parts
from everlong.frame.stream import Stream
from everlong.memory import Memory
from everlong.models.attach import AttachedModel
from everlong.text.prompt import opening_ids, soft_id

# The most turns of a 16-bit key before it leaves. Each turn rounds alike; so many add up to some 0.02 to 0.03 % of the
# key each (Llama's shape, bf16), and the archived key keeps that error.
_MOST_TURNS = 16


class KvFrame(Frame):
    """A frame whose zones hold keys and values."""

    served: AttachedModel
    zones: KvZones

    @torch.inference_mode(False)  # buffers made in inference mode could be written in that mode alone
    def __init__(
        self,
        served: AttachedModel,
        memory: Memory,
        config: MemoryConfig,
        tokenizer: Any,
        parts: Parts | None = None,
    ) -> None:
        require_budget(served, config)
        if served.dtype.itemsize == 2 and config.frame.rolling_tokens > _MOST_TURNS * config.frame.evict_tokens:
            warnings.warn(
                f"frame.evict_tokens={config.frame.evict_tokens}: every eviction turns the keys that stay, and rounds "
                f"them to 16 bits; with {config.frame.rolling_tokens // _MOST_TURNS} or more the error stays small",
                stacklevel=2,
            )
        self.served = served
        stream = Stream(memory, config, parts)
        zones = KvZones(served, stream, soft_id(tokenizer), opening_ids(tokenizer))
        self.cache, self._tokenizer = zones.cache, tokenizer
        super().__init__(stream, zones, tokenizer)

    @property
    def joins(self) -> bool:
        """Whether forks of it can compute together."""
        return self.zones.computing.joins

    @torch.inference_mode(False)
    def forks(self, count: int) -> list[KvFrame]:
        """Return frames that go on from where this one stands, as inside of a branch: they archive nothing.

        On a CPU all of them take as many bytes as this one, and each what it changes; on a GPU each takes as many.
        `detach` each at its end.
        """
        self.steps.require_whole()
        streams = [self.stream.fork() for _ in range(count)]
        with contextlib.ExitStack() as undo:
            zones = self.zones.forks(streams)
            for one in zones:
                undo.callback(one.detach)
            made = []
            for stream, one in zip(streams, zones, strict=True):
                other = object.__new__(KvFrame)
                other.served, other.cache, other._tokenizer = self.served, one.cache, self._tokenizer
                Frame.__init__(other, stream, one, self._tokenizer, resume=False)
                made.append(other)
            undo.pop_all()
        return made
