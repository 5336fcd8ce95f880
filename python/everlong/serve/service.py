"""All that a service is made of, and who may do what with it."""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everlong.frame.serve import default_config
from everlong.memory.where import Where
from everlong.serve.asking import Answers, Asked
from everlong.serve.engine import Engine, Job, Work
from everlong.serve.errors import ApiError, too_many
from everlong.serve.kept_responses import KeptResponses
from everlong.serve.keys import Key, Keys, hash_of
from everlong.serve.limits import Limits
from everlong.serve.loaded import Loaded
from everlong.serve.logs import Audit
from everlong.serve.looking import Looking
from everlong.serve.metrics import Metrics
from everlong.serve.readings import Readings
from everlong.serve.seats import Seats
from everlong.serve.shelf import Shelf, no_memory

_LOGGER = logging.getLogger("everlong.serve")
_SWEEP_SECONDS = 60.0


class Service:
    """One model, the memories of a folder, and their callers. Thread-safe."""

    def __init__(
        self, loaded: Loaded, root: Path, keys: Keys | None = None, limits: Limits | None = None, encoder: Any = None
    ) -> None:
        """`encoder`: for `/v1/embeddings` and for searches without the model; None: there are none."""
        self.loaded, self.limits, self.encoder = loaded, limits or Limits(), encoder
        self.keys = keys or Keys(())
        self.metrics = Metrics()
        # Of all RAM, each open memory has its share, and so has the one that is read into; looks have one together.
        each = None if self.limits.host_bytes is None else self.limits.host_bytes // (self.limits.open_memories + 2)
        self.shelf = Shelf(root, None if each is None else each // 4)
        self.audit = Audit(self.shelf.own / "audit.log")
        self.kept = KeptResponses(self.shelf.own / "responses.sqlite3")
        self.looking = Looking(loaded.for_another_thread().tokenizer, encoder)
        self.engine = Engine(self.limits, self.metrics.waited.observe)
        answering = None if each is None else each * self.limits.open_memories
        self.readings = Readings(loaded, self.shelf, self.limits, self.metrics, each)
        seats = Seats(loaded, self.limits.open_memories, answering, self.metrics.evictions.inc)
        window = (loaded.config or default_config(loaded.model)).frame.rolling_tokens
        self.answers = Answers(loaded, self.shelf, seats, self.limits, self.metrics, window)
        self.engine.prefers = lambda job: seats.has_idle(self.shelf.root / job.memory)
        by_name = {key.name: key for key in self.keys.all}
        self.readings.left = lambda name: self.bytes_left(by_name[name]) if name in by_name else None
        self.readings.after = lambda one: self.keys.count(by_name[one.key], one.tokens) if one.key in by_name else None
        self.shelf.on_change.append(self._changed)
        self._stopping = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="everlong retention", daemon=True)
        self.metrics.gauge("queue", "Questions that wait.", lambda: len(self.engine.queue))
        self.metrics.gauge("readings_waiting", "Texts that wait to be read.", lambda: len(self.readings.queue))
        self.metrics.gauge("at_work", "Answers under way.", lambda: self.engine.at_work)
        self.metrics.gauge("open_memories", "Memories that are open to answer.", lambda: len(seats))
        self.metrics.gauge("conversations", "Conversations that may go on.", lambda: len(self.answers.conversations))
        self.metrics.gauge("disk_bytes", "Bytes of all memories on disk.", self._disk_bytes)

    @property
    def ready(self) -> bool:
        return self.engine.alive and self.readings.alive and not self._stopping.is_set()

    def start(self) -> None:
        self.engine.start()
        self.readings.start()
        self._sweeper.start()

    def stop(self, seconds: float = 30.0) -> None:
        """End what is under way. What was acknowledged is on disk."""
        self._stopping.set()
        self.engine.stop(seconds)
        self.readings.stop()
        self._sweeper.join()
        self.answers.close()
        self.kept.close()
        self.audit.close()

    # --- what callers ask for

    def ask(self, key: Key, asked: Asked) -> Job:
        """Let a question wait for its answer. ApiError where the caller may not ask, or must wait."""
        if asked.memory:
            self.require(key, asked.memory)
        self.keys.require_tokens(key)

        def work() -> Work:
            said = yield from self.answers.answer(key.name, asked)
            self.keys.count(key, said.read + said.tokens)
            return said

        whose = {} if asked.user is None else {"user": hash_of(asked.user)[:16]}
        self.audit.note(key.name, "ask", asked.memory, **whose)
        return self._put(key, asked.memory, work)

    def _put(self, key: Key, memory: str, work: Callable[[], Work]) -> Job:
        job = Job(key.name, memory, work)
        self.engine.put(job)
        return job

    def require(self, key: Key, memory: str, *, write: bool = False, new: bool = False) -> Path:
        """Return the folder of a memory that the key may see, and write to. ApiError otherwise.

        A memory that it may not see is none to it. `new`: it need not be there.
        """
        folder = self.shelf.folder(memory)
        if not key.may_see(memory):
            raise no_memory(memory)
        if write:
            self.require_write(key)
        return folder if new else self.shelf.there(memory)

    def require_write(self, key: Key) -> None:
        """Raise ApiError 403 for a key that only reads."""
        if not key.write:
            raise ApiError(403, "this key may only read", "read_only_key")

    def visible(self, key: Key) -> list[str]:
        """Return the memories that the key may see."""
        return [name for name in self.shelf.names() if key.may_see(name)]

    def bytes_left(self, key: Key) -> int | None:
        """Return how many bytes on disk a key may still write; None: any number."""
        if key.max_bytes is None:
            return None
        used = 0
        for name in self.visible(key):
            with self.shelf.looking(name) as memory:
                used += sum(block.payload_bytes for block in memory.blocks(tag=key.tag))
        return key.max_bytes - used

    def require_bytes(self, key: Key, more: int) -> None:
        """Raise ApiError 429 where a key has as many bytes on disk as it may, or would have with `more`."""
        left = self.bytes_left(key)
        if left is not None and more > left:
            raise too_many(f"the key has its {key.max_bytes:,} bytes on disk: forget something", 60, "quota_exceeded")

    def tags_of(self, key: Key) -> tuple[str, ...]:
        """Return the tags of what a key writes."""
        return (key.tag,) if self.keys.all else ()

    # --- upkeep

    def _changed(self, memory: str, gone: bool) -> None:
        folder = self.shelf.folder(memory)

        def close() -> None:
            self.answers.seats.close(folder)
            if gone:
                self.answers.conversations.forget(memory)

        if gone:
            self.kept.forget(memory)
        self.engine.soon(close)

    def _sweep(self) -> None:
        while not self._stopping.wait(_SWEEP_SECONDS):
            self.sweep()

    def sweep(self) -> None:
        """Forget what is older than the keys that wrote it allow."""
        for key in self.keys.all:
            if key.keep_seconds is None:
                continue
            for name in self.visible(key):
                try:
                    self._sweep_one(name, key.tag, key.keep_seconds)
                except Exception as error:  # the others go all the same
                    _LOGGER.warning("old blocks were not forgotten", exc_info=error, extra={"memory": name})

    def _sweep_one(self, name: str, tag: str, seconds: float) -> None:
        old = Where(tags=tag, before=datetime.timedelta(seconds=seconds))
        with self.shelf.looking(name) as memory:
            if not memory.blocks(where=old):
                return
        with self.shelf.changing(name, gone=True) as memory:
            forgotten = memory.forget(where=old)
            memory.compact()
        self.metrics.retired.inc(forgotten)
        self.audit.note(tag.removeprefix("by:"), "retire", name, blocks=forgotten)

    def _disk_bytes(self) -> float:
        files = (file for name in self.shelf.names() for file in (self.shelf.root / name).rglob("*"))
        total = 0
        for file in files:
            try:
                total += file.stat().st_size if file.is_file() else 0
            except OSError:  # removed meanwhile
                continue
        return float(total)
