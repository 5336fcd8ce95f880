"""Whether what stands in a frame is in its memory still, or was forgotten.

Places of the stream that were forgotten at its end come to other text. Blocks' ids come to no other block."""

from __future__ import annotations

from everlong.frame.stream import Stream
from everlong.memory.frame_file import is_there


def is_still_stored(stream: Stream, own_from: int | None) -> bool:
    """Return whether the memory has all archived tokens that stand in the frame, or that anything in it stands for.

    own_from: the first token that the state of layers which are not archived has anything of; None: there is no state.
    """
    os = stream.os
    begin, end = os.rolling
    until = min(os.stream_end, os.archived_until)
    zone, kept = os.anchor_zone, os.kept
    spans = [
        (0, min(os.sinks, until)),
        (begin, min(end, until)),
        *((first, last) for first, last, _ in zone["tombstones"]),
        *zone["anchors"],
        *((first, last) for first, last, *_ in kept["blocks"]),
        *([] if own_from is None else [(own_from, until)]),
    ]
    core, newest = stream.memory.core, stream.newest_block
    return all(is_there(core, first, last, newest) for first, last in spans if first < last)
