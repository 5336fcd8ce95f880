"""Small windows beside the frame: archived pages, a window per group, for one forward that asks all the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from transformers.cache_utils import DynamicCache

import everlong._core as _core
from everlong.frame.kv_frame import KvFrame
from everlong.kv_cache.cache import ResidentCache
from everlong.kv_cache.page_loading import Run


@dataclasses.dataclass(frozen=True)
class Windows:
    """B windows of at most W tokens, as a cache of transformers. A forward of B rows goes on from it."""

    cache: DynamicCache  # k, v [B, Hkv, W, D] of every layer of the model
    mask: torch.Tensor  # int64 [B, W]: 1 where there is a token; a shorter window is padded on the left
    next_positions: torch.Tensor  # int64 [B]: the position of what comes next, as the model counts


def window_tokens(pages: Sequence[_core.PageRef]) -> int:
    """Return how many tokens a recall of these pages brings back. Sinks are not among them: they are in the frame."""
    return sum(page.end - page.begin - page.sink_tokens for page in pages)


def archived_windows(frame: KvFrame, groups: Sequence[Sequence[_core.PageRef]]) -> Windows:
    """Put each group's archived pages into a window of its own: the frame's sinks, then the pages behind them.

    The sinks are keys that attention can rest on, as in the frame. A group without pages is a window of sinks alone.
    The frame is not touched. Every layer of the model must be archived: other layers' state is in no page.
    MemoryNotFoundError where a page was forgotten.
    """
    served, sinks = frame.served, frame.os.sinks
    lengths = [sinks + window_tokens(pages) for pages in groups]
    width = max(lengths)
    slots = ResidentCache(served, frame_tokens=max(1, width * len(groups)), sink_tokens=0, front_tokens=0)
    by_row = (served.layers, served.kv_heads, len(groups), width, served.head_dim)
    k, v = (x[:, :, : width * len(groups)].view(by_row) for x in (slots.k, slots.v))
    runs: list[Run] = []
    for row, (pages, length) in enumerate(zip(groups, lengths, strict=True)):
        first = width - length
        k[:, :, row, first : first + sinks] = frame.cache.k[:, :, frame.cache.begin : frame.cache.begin + sinks]
        v[:, :, row, first : first + sinks] = frame.cache.v[:, :, frame.cache.begin : frame.cache.begin + sinks]
        position = sinks
        for page in pages:
            tokens = window_tokens([page])
            if tokens > 0:
                slot = row * width + first + position
                runs.append(Run(page, page.sink_tokens, tokens, slot=slot, position=position))
            position += tokens
    frame.zones.pages.restore_runs(runs, slots)
    cache = DynamicCache()
    if width > 0:
        for layer, index in sorted(enumerate(served.archived), key=lambda pair: pair[1]):
            cache.update(k[layer].transpose(0, 1), v[layer].transpose(0, 1), index)
    tensor = torch.tensor(lengths, device=served.device)
    mask = torch.arange(width, device=served.device) >= width - tensor[:, None]
    return Windows(cache, mask.long(), tensor + served.first_position)
