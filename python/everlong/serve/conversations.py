"""Conversations that clients send whole each time: what was read of one is not read again.

A conversation is a fork of its memory, and stands where its newest answer ends. Before it goes on it is forked once
more, so that an earlier turn can be answered anew, or go on otherwise. Both are copies by hard links. All of it can be
made again from what clients send, so it is gone when the service ends.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from everlong.memory import Memory
from everlong.serve.model_pool import ModelPool, PooledModel, Version
from everlong.service_data.memory_registry import MemoryState

_VERSION: Version = (None, 0)  # of a conversation's own folder, which nobody else changes


@dataclasses.dataclass(eq=False)
class _Position:
    """Where a conversation stood after a message."""

    memory: str
    version: Version  # of the memory
    folder: Path
    base: int  # tokens of the stream before the conversation
    is_latest: bool  # its folder goes on from there; otherwise it is a copy that stays as it is


@dataclasses.dataclass(frozen=True)
class OpenConversation:
    """A conversation that goes on."""

    pooled: PooledModel
    base: int


def digests_of(key: str, memory: str, messages: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a digest for every message, of all up to there. Another key's conversation has others."""
    running = hashlib.sha256(json.dumps([key, memory]).encode())
    found = []
    for message in messages:
        running.update(json.dumps([message["role"], message["content"]]).encode())
        found.append(running.hexdigest())
    return found


class Conversations:
    """For the answering thread alone."""

    def __init__(self, root: Path, most: int, pool: ModelPool) -> None:
        """`root`: a folder of its own, which is emptied. `most`: how many places are kept."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True, mode=0o700)
        self.root, self._most, self._pool = root, most, pool
        self._places: collections.OrderedDict[str, _Position] = collections.OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._places)

    def known(self, digests: Sequence[str], version: Version) -> int:
        """Return how many of the messages a conversation has, which was forked from this version of the memory."""
        for count in range(len(digests), 0, -1):
            place = self._places.get(digests[count - 1])
            if place is not None and place.version == version:
                return count
        return 0

    @contextlib.contextmanager
    def resume(self, memory: str, version: Version, library: Path, digest: str | None) -> Iterator[OpenConversation]:
        """Open the conversation that stood at `digest`; None: a new one, of the memory in the folder `library`.

        `reached` says where it stands at the end. One that was not told so is removed.
        """
        place = None if digest is None else self._places.get(digest)
        if place is None:
            folder, base = self._fork(library), None
        elif place.is_latest:
            folder, base = place.folder, place.base
            with self._pool.acquire(folder, _VERSION, read_only=False) as pooled:
                copied = self._new()
                self._forked(pooled.mm.memory, copied)
            assert digest is not None
            self._places[digest] = dataclasses.replace(place, folder=copied, is_latest=False)
            self._places.move_to_end(digest)
        else:
            folder, base = self._fork(place.folder), place.base
        try:
            with self._pool.acquire(folder, _VERSION, read_only=False) as pooled:
                yield OpenConversation(pooled, pooled.mm.stream_tokens if base is None else base)
        finally:
            if not any(one.folder == folder for one in self._places.values()):
                self._remove(folder)

    def record(self, digest: str, memory: str, version: Version, conversation: OpenConversation) -> None:
        """Note where a conversation stands now."""
        old = self._places.pop(digest, None)
        self._places[digest] = _Position(memory, version, conversation.pooled.folder, conversation.base, True)
        if old is not None:
            self._remove(old.folder)
        while len(self._places) > self._most:
            _, oldest = self._places.popitem(last=False)
            self._remove(oldest.folder)

    def memories(self) -> set[str]:
        """Return the memories that conversations were forked from. Any thread may ask."""
        return {place.memory for place in list(self._places.values()) if place.memory}

    def forget(self, memory: str, state: MemoryState | None) -> None:
        """Remove the conversations of a memory that were forked before `state`; None: it is gone."""
        for digest, place in list(self._places.items()):
            if place.memory == memory and (state is None or place.version[0] != state):
                self._remove(self._places.pop(digest).folder)

    def _new(self) -> Path:
        return self.root / uuid.uuid4().hex

    def _fork(self, folder: Path) -> Path:
        made = self._new()
        with Memory.open(folder, read_only=True) as memory:
            self._forked(memory, made)
        return made

    @staticmethod
    def _forked(memory: Memory, folder: Path) -> None:
        try:
            memory.fork(folder).close()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _remove(self, folder: Path) -> None:
        self._pool.close(folder)
        shutil.rmtree(folder, ignore_errors=True)
