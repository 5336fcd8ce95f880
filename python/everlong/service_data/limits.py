"""How much a service takes, of what, and for how long."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a service. All of them hold for every caller; a key may have further ones (keys.py)."""

    open_memories: int = 8  # memories and conversations that are open at once
    host_bytes: int | None = None  # RAM of all of them together; None: half of what is free
    at_once: int = 4  # answers that are under way at once, a token of each in turn
    waiting: int = 64  # questions that wait in all
    waiting_each: int = 32  # questions that wait of one key
    readings: int = 1000  # texts that wait to be read
    readings_each: int = 500  # texts that wait of one key
    looks: int = 4  # memories that are open at once to be looked into
    looks_each: int = 2  # of one key
    copies: int = 2  # memories that are exported, verified or compacted at once; of one key, one
    queue_seconds: float = 120.0  # a question waits no longer
    answer_seconds: float = 600.0  # an answer ends after that
    conversations: int = 64  # conversations, and earlier turns of them, that are kept to go on with
    answer_tokens: int = 4096  # the most that may be asked for
    default_tokens: int = 512  # of an answer for which nothing is asked
    body_bytes: int = 8 << 20  # of a JSON body
    upload_bytes: int = 1 << 30  # of a file
    json_depth: int = 32
    headers: int = 64
    header_seconds: float = 15.0  # a connection whose next request has begun, and has no end of its headers, is closed
    connections: int = 1000  # that are open at once; half of them from one address, except this machine's own
    body_seconds: float = 30.0  # a body that pauses for longer is given up
    body_rate: int = 4 << 10  # bytes a second: a body that comes more slowly is given up, after `body_seconds`
    embedded_bytes: int = 1 << 20  # of all texts of a request for vectors
