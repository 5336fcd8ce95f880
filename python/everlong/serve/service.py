"""All that a service is made of, and who may do what with it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import datetime
import functools
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everlong.errors import CorruptMemoryError, MemoryBusyError, MemoryNotFoundError
from everlong.frame.model_setup import default_config
from everlong.memory import Memory
from everlong.memory.sources import source_meant
from everlong.memory.where import Where, names_of
from everlong.serve.answering import AnswerEngine, AnswerRequest, TokenCounter
from everlong.serve.engine import Engine, Job, Work
from everlong.serve.exports_in_progress import ExportsInProgress
from everlong.serve.fair_semaphore import FairSemaphore
from everlong.serve.inspector import MemoryInspector
from everlong.serve.loaded_model import LoadedModel
from everlong.serve.logs import Audit
from everlong.serve.metrics import Metrics
from everlong.serve.model_pool import ModelPool
from everlong.serve.readings import Readings
from everlong.service_data.errors import ApiError
from everlong.service_data.keys import Key, Keys, hash_of
from everlong.service_data.limits import Limits
from everlong.service_data.memory_registry import MemoryRegistry, MemoryState, memory_changed, no_memory
from everlong.service_data.quotas import Quotas
from everlong.service_data.records import Records
from everlong.service_data.service_folder import ServiceFolder
from everlong.service_data.spool import ReadingJob, Spool
from everlong.service_data.stored_responses import StoredResponses
from everlong.text.notebook_html import CONVERSATION

_LOGGER = logging.getLogger("everlong.serve")
_SWEEP_SECONDS = 60.0


class Service:
    """One model, the memories of a folder, and their callers. Thread-safe."""

    def __init__(
        self,
        loaded_model: LoadedModel,
        root: Path,
        keys: Keys | None = None,
        limits: Limits | None = None,
        encoder: Any = None,
        *,
        alone: bool = True,
    ) -> None:
        """`encoder`: for `/v1/embeddings` and for searches without the model; None: there are none.

        MemoryBusyError where another service serves these memories, unless this one need not be `alone` with them.
        """
        self.loaded, self.limits, self.encoder = loaded_model, limits or Limits(), encoder
        self.keys = keys or Keys(())
        self.metrics = Metrics()
        # Of all RAM, each open memory has its share, and so has the one that is read into; looks have one together.
        each = None if self.limits.host_bytes is None else self.limits.host_bytes // (self.limits.open_memories + 2)
        self.folder = ServiceFolder(root, alone=alone)
        self.registry = MemoryRegistry(root, None if each is None else each // 4)
        self.audit = Audit(self.folder.audit)
        self.records = Records(self.folder.records)
        self.kept = StoredResponses(self.folder.responses, self.records, self.registry.state)
        self.spool = Spool(self.folder.spool, self.records, self.registry.id)
        self.quotas = Quotas(self.keys, self.registry, self.spool, self.kept)
        self.inspector = MemoryInspector(loaded_model.with_own_tokenizer().tokenizer, encoder)
        self.engine = Engine(self.limits, self.metrics.waited.observe)
        answering = None if each is None else each * self.limits.open_memories
        self.readings = Readings(loaded_model, self.registry, self.spool, self.limits, self.metrics, self.quotas, each)
        self.looks = FairSemaphore(self.limits.looks, self.limits.looks_each)
        self.copies, self.sending = FairSemaphore(self.limits.copies, 1), ExportsInProgress()
        self.encoding = FairSemaphore(1, 1)  # a few texts of each caller in turn
        pool = ModelPool(loaded_model, self.limits.open_memories, answering, self.metrics.evictions.inc)
        window = (loaded_model.config or default_config(loaded_model.model)).frame.rolling_tokens
        self.answers = AnswerEngine(loaded_model, self.registry, self.folder, pool, self.limits, self.metrics, window)
        self.engine.prefers = lambda job: pool.has_idle(self.registry.root / job.memory)
        self._to_compact: set[str] = set()  # memories that hold bytes of what was forgotten
        self._stopping = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="everlong retention", daemon=True)
        self.metrics.gauge("queue", "Questions that wait.", lambda: len(self.engine.queue))
        self.metrics.gauge("readings_waiting", "Texts that wait to be read.", lambda: len(self.readings.queue))
        self.metrics.gauge("at_work", "Answers under way.", lambda: self.engine.active_jobs)
        self.metrics.gauge("open_memories", "Memories that are open to answer.", lambda: len(pool))
        self.metrics.gauge("conversations", "Conversations that may go on.", lambda: len(self.answers.conversations))
        self.metrics.gauge("disk_bytes", "Bytes of all memories on disk.", self._disk_bytes)

    @property
    def ready(self) -> bool:
        alive = self.engine.alive and self.readings.alive and self._sweeper.is_alive()
        return alive and not self._stopping.is_set()

    def start(self) -> None:
        self.engine.start()
        self.readings.start()
        self._sweeper.start()

    def stop(self, seconds: float = 30.0) -> None:
        """End what is under way. What was acknowledged is on disk."""
        self._stopping.set()
        self.readings.end_waits()
        self.engine.stop(seconds)
        self.readings.stop()
        self._sweeper.join()
        self.answers.close()
        self.records.close()
        self.audit.close()
        self.folder.close()

    # --- what callers ask for

    def ask(self, key: Key, request: AnswerRequest) -> Job:
        """Let a question wait for its answer. ApiError where the caller may not ask, or must wait."""
        if request.memory:
            self.require(key, request.memory)
        self.keys.require_tokens(key)
        there = Memory.id_of(self.registry.existing_folder(request.memory)) if request.memory else ""

        def work() -> Work:
            counter, reserved = TokenCounter(), request.tokens
            self.keys.reserve(key, reserved)
            try:
                return (yield from self.answers.answer(key.name, request, counter))
            except (MemoryNotFoundError, CorruptMemoryError) as error:
                # A block was forgotten while it was looked at, or all of the memory was removed.
                if isinstance(error, CorruptMemoryError) and self._is_there(request.memory, there):
                    raise
                self.registry.existing_folder(request.memory)
                raise memory_changed(request.memory) from None
            finally:  # also of an answer that was cut off, or failed
                self.keys.count(key, counter.tokens - reserved)

        whose = {} if request.user is None else {"user": hash_of(request.user)[:16]}
        self.audit.note(key.name, "ask", request.memory, **whose)
        return self._put(key, request.memory, work)

    def _put(self, key: Key, memory: str, work: Callable[[], Work]) -> Job:
        job = Job(key.name, memory, work)
        self.engine.put(job)
        return job

    def require(self, key: Key, memory: str, *, write: bool = False, new: bool = False) -> Path:
        """Return the folder of a memory that the key may see, and write to. ApiError otherwise.

        A memory that it may not see is none to it. `new`: it need not be there.
        """
        folder = self.registry.folder(memory)
        if not key.may_see(memory):
            raise no_memory(memory)
        if write:
            self.require_write(key)
        return folder if new else self.registry.existing_folder(memory)

    def require_write(self, key: Key) -> None:
        """Raise ApiError 403 for a key that only reads."""
        if not key.write:
            raise ApiError(403, "this key may only read", "read_only_key")

    def visible(self, key: Key) -> list[str]:
        """Return the memories that the key may see."""
        return [name for name in self.registry.names() if key.may_see(name)]

    def tags_of(self, key: Key) -> tuple[str, ...]:
        """Return the tags of what a key writes."""
        return (key.tag,) if self.keys.all else ()

    # --- what is taken out of a memory

    def forget(self, name: str, where: Where) -> int:
        """Forget what `where` says in a memory, and give its bytes back. Return how many blocks and texts it was.

        For who has the turn to write, and sees to it that every holder hears (`hear`), also where this fails: what was
        forgotten is gone from every search as soon as the first of the two steps is done.
        """
        with self.registry.open_writable(name) as memory:  # while another process writes, nothing is forgotten
            forgotten = memory.forget(where=self._matching_sources(memory, name, where))
            waiting = self.readings.forget(name, memory.id, lambda order: _is_of(order, where))
            if forgotten:
                self._compact(name, memory)
        return forgotten + waiting

    def _matching_sources(self, memory: Memory, name: str, where: Where) -> Where:
        """Return a part of a memory by its sources' own names. A text that waits to be read has one, too."""
        called = names_of(where.source)
        orders = self.spool.jobs(memory.id, name) if CONVERSATION in called else ()
        waiting = {one for order in orders if order.state not in ("done", "cancelled") for one in order.sources}
        meant = [one if one in waiting else source_meant(memory, one) for one in called]
        return dataclasses.replace(where, source=tuple(meant))

    def _compact(self, name: str, memory: Memory) -> None:
        """Give back the bytes of what was forgotten. A sweep does where another process reads, or the disk refuses."""
        self._to_compact.add(name)
        with contextlib.suppress(MemoryBusyError):
            memory.compact()
            self._to_compact.discard(name)

    def remove(self, name: str) -> Path:
        """Take a memory off the shelf. The same holds as for `forget`. Return where it waits to be discarded."""
        hidden = self.folder.new_in(self.folder.trash)
        self.registry.remove(name, hidden)
        return hidden

    def notify_holders(self, name: str) -> list[concurrent.futures.Future[None]]:
        """Let every holder of what came from a memory hear what was forgotten there, by whomever. Any thread may.

        What it returns is done when no answer under way, no open memory, no conversation and no export has any of it.
        Kept answers, and texts of a memory that is gone, have gone before.
        """
        state = self.registry.state(name)
        self.registry.record_change(name)
        error = no_memory(name) if state is None else memory_changed(name)

        def let_go() -> None:
            self.engine.interrupt(name, error)
            self.answers.close_memory(name, state)

        done = [self.engine.soon(let_go), *self.sending.end(name)]
        self._drop_rows(name, state)
        self.records.overwrite()
        return done

    def _drop_rows(self, name: str, state: MemoryState | None) -> None:
        """Remove the records of memories of that name that are gone, and answers that began before `state`."""
        gone = []
        with self.records.changing():  # `state` may be past: only what is there now counts
            for number, called, id in self.records.memories():
                if called == name and not self._is_there(name, id):
                    self.records.remove_memory(number)
                    gone.append(id)
        for id in gone:
            self.readings.gone(name, id)
            self.kept.clean()
        self.kept.forget(name, state)
        self.readings.hear(name, state)

    def _is_there(self, name: str, id: str) -> bool:
        try:
            return Memory.id_of(self.registry.existing_folder(name)) == id
        except (ApiError, MemoryNotFoundError):
            return False

    # --- upkeep

    def _sweep(self) -> None:
        self._swept("", self._look_for_dead_bytes)
        while not self._stopping.is_set():
            self.sweep()
            if self._stopping.wait(_SWEEP_SECONDS):
                return

    def sweep(self) -> None:
        """Forget what is older than the keys that wrote it allow, and hear what other processes forgot."""
        self._swept("", self._notify_all)
        for key in self.keys.all:
            if key.keep_seconds is not None:
                self._swept("", functools.partial(self._retire_all, key, key.keep_seconds))
        for name in list(self._to_compact):
            self._swept(name, functools.partial(self._compact_again, name))
        for clean in (self.records.overwrite, self.folder.empty_trash, self.folder.clean_abandoned):
            self._swept("", clean)

    def _notify_all(self) -> None:
        for name in {name for _, name, _ in self.records.memories()} | self.answers.conversations.memories():
            self._swept(name, functools.partial(self._notify_others, name))

    def _retire_all(self, key: Key, seconds: float) -> None:
        self.kept.retire(key.name, seconds)
        self.spool.retire(key.name, seconds)
        for name in self.visible(key):
            self._swept(name, functools.partial(self._retire, name, key.tag, seconds))

    def _look_for_dead_bytes(self) -> None:
        """Find what a process that was killed forgot, and did not give back."""
        for name in self.registry.names():
            with self.registry.open_read_only(name) as memory:
                if memory.stats().dead_bytes and not self._stopping.is_set():
                    self._to_compact.add(name)

    def _compact_again(self, name: str) -> None:
        if not Memory.exists(self.registry.folder(name)):
            self._to_compact.discard(name)
            return
        with self.registry.write_lock(name, 1.0), self.registry.open_writable(name) as memory:
            self._compact(name, memory)

    def _swept(self, name: str, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # the others go all the same
            _LOGGER.warning("the upkeep of a memory failed", exc_info=error, extra={"memory": name})

    def _notify_others(self, name: str) -> None:
        """Let who keeps something of a memory hear what other processes forgot. Answers under way look themselves."""
        state = self.registry.state(name)
        self._drop_rows(name, state)
        self.engine.soon(functools.partial(self.answers.close_memory, name, state))

    def _retire(self, name: str, tag: str, seconds: float) -> None:
        old = Where(tags=tag, before=datetime.timedelta(seconds=seconds))
        with self.registry.open_read_only(name) as memory:
            if not memory.blocks(where=old, limit=1):
                return
        try:
            with self.registry.write_lock(name), self.registry.open_writable(name) as memory:
                forgotten = memory.forget(where=old)
                self._compact(name, memory)
        finally:
            self.notify_holders(name)
        self.metrics.retired.inc(forgotten)
        self.audit.note(tag.removeprefix("by:"), "retire", name, blocks=forgotten)

    def _disk_bytes(self) -> float:
        return float(sum(map(_bytes_in, (self.registry.root / name for name in self.registry.names()))))


def _bytes_in(folder: Path) -> int:
    """Return the bytes of the files in a folder; of one that is removed meanwhile, some of them."""
    total = 0
    with contextlib.suppress(OSError):
        for file in folder.rglob("*"):
            total += file.stat().st_size
    return total


def _is_of(order: ReadingJob, where: Where) -> bool:
    """Return whether a text would be read under the names of `where`. No time is asked for: it is not read yet."""
    if where.origin is not None and where.origin != order.origin:
        return False
    sources = set(names_of(where.source))
    called = not sources or not sources.isdisjoint(order.sources)
    return called and set(names_of(where.tags)) <= set(order.metadata.tags)
