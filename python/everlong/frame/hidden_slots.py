"""Which slots of a cache the model does not attend to, because a question's filter leaves their text out."""

from __future__ import annotations

import numpy as np

from everlong.frame.stream import Stream
from everlong.kv_cache.cache import ResidentCache
from everlong.kv_cache.visible_spans import VisibleMask


def hidden_slots(stream: Stream, cache: ResidentCache) -> VisibleMask | None:
    """Return bool [slots], True where a slot is hidden; None where the stream hides nothing.

    Sinks are shown: where they do not pass, others stand in their slots. So is what came back, which passed. A
    tombstone is hidden where any token that it stands for is.
    """
    visible, os = stream.visible, stream.os
    if visible is None:
        return None
    hidden = np.zeros(cache.slots, dtype=np.bool_)
    begin, end = os.rolling
    hidden[cache.rolling_slot : cache.rolling_slot + end - begin] = ~visible.span(begin, end)
    zone = os.anchor_zone
    stones = np.array([visible.whole(first, last) for first, last, _ in zone["tombstones"]], dtype=np.bool_)
    anchors = [visible.span(first, last) for first, last in zone["anchors"]]
    front = np.concatenate([stones, *anchors, visible.tokens(cache.kept_visible)])
    first_recalled = cache.rolling_slot - cache.recalled
    hidden[first_recalled - len(front) : first_recalled] = ~front
    return hidden
