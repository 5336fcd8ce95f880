"""Whoever asks: a key, random numbers of his own, and texts drawn from them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

from support.soak.calls import Calls
from support.soak.names import KEYS
from support.soak.oracle import Presence, StoredMemory, Text


class Client:
    """One of many, with a key that several have."""

    def __init__(self, number: int, seed: int, calls: Calls, responses: list[Any]) -> None:
        """`responses`: those of all callers, as (id, key, memory, what was taken out of it, the memory made)."""
        self.rng, self.key = Random(f"{seed} {number}"), KEYS[number % len(KEYS)]
        self.calls, self.oracle, self.responses = calls, calls.oracle, responses
        self.talks: list[tuple[StoredMemory, list[dict[str, str]]]] = []  # conversations that may go on
        self.mine = [one for one in self.oracle.memories.values() if self.key.may_see(one.name)]

    def memory(self) -> StoredMemory:
        return self.rng.choice(self.mine)

    def one_text(self, memory: StoredMemory) -> Text | None:
        """Draw a text of a memory that may be there."""
        there = [one for one in memory.texts if one.there is not Presence.NO]
        return self.rng.choice(there) if there else None


@contextlib.contextmanager
def held(memory: StoredMemory) -> Iterator[None]:
    """Let nobody else make or remove a memory."""
    memory.held = True
    try:
        yield
    finally:
        memory.held = False
