"""The thread that reads: one text after the other, in the background, each with its progress."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everlong.errors import CapacityError, EverlongError, MemoryBusyError, MemoryNotFoundError
from everlong.generation.file_input import FileText, FileTexts, file_texts
from everlong.generation.memory_model import MemoryModel
from everlong.memory import Memory
from everlong.memory.where import Time, parse_time
from everlong.serve.fair_queue import FairQueue
from everlong.serve.loaded_model import LoadedModel
from everlong.serve.metrics import Metrics
from everlong.service_data.errors import ApiError, refusal_of, too_many
from everlong.service_data.limits import Limits
from everlong.service_data.memory_registry import MemoryRegistry, MemoryState, no_memory
from everlong.service_data.quotas import Quotas
from everlong.service_data.spool import OVER, ReadingJob, Spool

_LOGGER = logging.getLogger("everlong.serve")
_MOST_CRASHES = 2  # a text that was read when the process ended so often is set aside
_MOST_FAILURES = 5  # attempts at a text that fails by something that nobody expected
_LONGEST_PAUSE = 300.0  # seconds between two attempts
_SOON = 0.1  # seconds until a reading that made room goes on
_NOTED = 5.0  # seconds between two notes of how far a reading is
_LEAST_TURN = 1.0  # seconds that a reading goes on though somebody waits to change its memory
_MOST_WANTED = 1.0  # seconds that it waits for those who do


class _TakenBackError(Exception):
    """Ends a reading that nobody wants any more, or that the service has no time for."""


class _LaterError(Exception):
    """Ends a reading that makes room. It goes on where it was, and nobody waits for it any more who is told why."""

    def __init__(self, why: str | None = None) -> None:
        super().__init__(why)
        self.why = why


@dataclasses.dataclass(eq=False)
class Reading:
    """A text on its way into a memory."""

    job: ReadingJob
    state: str = "waiting"  # as of an order
    tokens: int = 0  # read so far
    of: int | None = None  # in all, where that is known
    attempts: int = 0
    report: dict[str, Any] | None = None
    error: str | None = None  # of the last attempt
    cancelled: bool = False
    not_before: float = 0.0  # on the monotonic clock
    began: float = 0.0  # its turn
    # Done when the first attempt is over, or the service ends.
    tried: concurrent.futures.Future[None] = dataclasses.field(default_factory=concurrent.futures.Future)

    @classmethod
    def of_order(cls, job: ReadingJob) -> Reading:
        state, cancelled = job.state, job.state == "cancelled"
        return cls(job, state, job.tokens, None, job.attempts, job.report, job.reason, cancelled)

    @property
    def key(self) -> str:
        return self.job.key

    @property
    def memory(self) -> str:
        return self.job.memory

    def fields(self) -> dict[str, Any]:
        """Return it for a caller."""
        return {
            "id": self.job.id,
            "object": "memory.reading",
            "memory": self.memory,
            "source": self.job.metadata.source or self.job.file,
            "status": self.state,
            "tokens": self.tokens,
            "total_tokens": self.of,
            "report": self.report,
            "attempts": self.attempts,
            "error": self.error,
        }

    def end_wait(self) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.tried.set_result(None)


class Readings:
    """Reads texts into memories. Thread-safe.

    What was accepted stays until it is read or taken back: what fails for a while is tried again, and what cannot be
    read stays with its reason.
    """

    def __init__(
        self,
        loaded_model: LoadedModel,
        registry: MemoryRegistry,
        spool: Spool,
        limits: Limits,
        metrics: Metrics,
        quotas: Quotas,
        host_bytes: int | None = None,
    ) -> None:
        self._loaded, self._registry, self._metrics = loaded_model.with_own_tokenizer(), registry, metrics
        self._quotas, self._host_bytes, self.spool = quotas, host_bytes, spool
        self.queue: FairQueue[Reading] = FairQueue(limits.readings, limits.readings_each)
        self._set_aside = limits.readings_each
        self._live: dict[str, Reading] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="everlong readings", daemon=True)
        for job in self.spool.waiting_jobs():
            self._next_job(job)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def require_capacity(self, key: str) -> None:
        """Raise ApiError 429 where too many texts wait."""
        if self._stopping.is_set() or not self.queue.has_capacity(key):
            raise too_many("too many texts wait to be read", 30, "queue_full")
        if self.spool.set_aside(key) >= self._set_aside:
            raise too_many("too many texts of the key failed: try them again, or delete them", 30, "queue_full")

    def put(self, job: ReadingJob) -> Reading:
        """Let an accepted text wait for its turn. ApiError 429 where too many wait: then it was not accepted."""
        reading = Reading(job)
        self._live[job.id] = reading
        if self.spool.job(job.id) is None:  # it was forgotten before anybody was told that it is accepted
            self._drop(reading)
        elif not self.queue.put(reading):
            del self._live[job.id]
            self.spool.remove(job.id)
            raise too_many("too many texts wait to be read", 30, "queue_full")
        return reading

    def of(self, memory: str) -> list[Reading]:
        """Return the readings of a memory that are known still, oldest first."""
        self.hear(memory, self._registry.state(memory))
        return [self._reading(job) for job in self.spool.jobs(self._registry.id(memory), memory)]

    def one(self, memory: str, id: str) -> Reading:
        """Return a reading. ApiError where it is not known."""
        job = self.spool.job(id)
        if job is not None and job.state == "done":  # its name may have been forgotten
            self.hear(memory, self._registry.state(memory))
            job = self.spool.job(id)
        if job is None or (job.memory, job.memory_id) != (memory, self._registry.id(memory)):
            raise ApiError(404, f"{memory!r} has no reading {id[:80]!r}", "reading_not_found")
        return self._reading(job)

    def cancel(self, reading: Reading) -> None:
        """Take a text back, as far as it is not read yet. One that failed is forgotten."""
        if reading.state == "failed":
            self.spool.remove(reading.job.id)
        elif reading.state not in OVER:
            self.spool.note(reading.job.id, state="cancelled")
            reading.cancelled = True
            if self.queue.remove(reading):
                self._drop(reading)

    def retry(self, reading: Reading) -> Reading:
        """Try a text that failed again. ApiError where it did not, or has no text any more."""
        self.require_capacity(reading.key)
        job = self.spool.take_up_again(reading.job.id)
        if job is None:
            raise ApiError(409, "there is nothing to try again", "no_text_to_read")
        return self._next_job(job)

    def forget(self, memory: str, memory_id: str, matches: Callable[[ReadingJob], bool]) -> int:
        """Remove the texts of a memory that match, read or not, and end their readings. Return how many were not."""
        found = [job for job in self.spool.jobs(memory_id, memory) if matches(job)]
        for job in found:
            reading = self._live.get(job.id)
            if reading is not None:
                reading.cancelled = True
                if self.queue.remove(reading):
                    self._drop(reading)
            self.spool.remove(job.id)
        return sum(job.state not in ("done", "cancelled") for job in found)

    def gone(self, memory: str, memory_id: str) -> None:
        """End the readings of a memory that was removed, with its row: their texts go."""
        for reading in list(self._live.values()):
            if (reading.memory, reading.job.memory_id) == (memory, memory_id):
                reading.cancelled = True
                if self.queue.remove(reading):
                    self._drop(reading)
        self.spool.clean()

    def end_waits(self) -> None:
        """Let nobody wait for a reading any more."""
        self._stopping.set()
        for reading in list(self._live.values()):
            reading.end_wait()

    def stop(self) -> None:
        """End the reading at work between two chunks. It goes on when the service starts again."""
        self.end_waits()
        self.queue.close()
        if self._thread.is_alive():
            self._thread.join()

    def _next_job(self, job: ReadingJob) -> Reading:
        """Let a text wait that was accepted before, however many wait."""
        reading = Reading.of_order(job)
        if job.state == "reading":  # the process ended while it was read
            crashes = job.crashes + 1
            state = "failed" if crashes >= _MOST_CRASHES else "waiting"
            if state == "failed":
                reading.error = f"set aside: the service ended {crashes} times while it was read"
            self.spool.note(job.id, state=state, crashes=crashes, reason=reading.error)
            reading.state = state
        if reading.state == "waiting":
            self._live[job.id] = reading
            self.queue.put(reading, anyway=True)
        return reading

    def hear(self, memory: str, state: MemoryState | None) -> None:
        """Forget the names of texts that were read and are forgotten, by whomever. `state`: of the memory now."""
        if state is not None and self.spool.has_older(memory, state):
            with self._registry.open_read_only(memory) as opened:
                self.spool.keep_named(memory, state, lambda source: bool(opened.blocks(source, limit=1)))

    def _reading(self, job: ReadingJob) -> Reading:
        return self._live.get(job.id) or Reading.of_order(job)

    def _run(self) -> None:
        while not self._stopping.is_set():
            reading = self.queue.take(wait=0.5, ready=self._may_begin)
            if reading is None:
                continue
            try:
                self._read(reading)
            except Exception:  # whatever fails, the thread goes on, and so does the text
                _LOGGER.exception("a reading failed beside its text", extra={"reading": reading.job.id})
                reading.state, reading.not_before = "waiting", time.monotonic() + _NOTED
                self.queue.put(reading, anyway=True, first=True)

    def _may_begin(self, reading: Reading) -> bool:
        now = time.monotonic()
        if reading.not_before > now:
            return False
        wanted = now < reading.not_before + _MOST_WANTED and self._registry.has_waiting_writer(reading.memory)
        return not wanted and self._quotas.has_tokens(reading.key)

    def _read(self, reading: Reading) -> None:
        """Read a text, once: to its end, or until it fails or makes room."""
        started = reading.began = time.monotonic()
        try:
            if reading.cancelled:
                raise _TakenBackError
            with self._registry.write_lock(reading.memory, patience=0.0) as folder:
                if reading.cancelled:  # while it waited for the memory
                    raise _TakenBackError
                if self._registry.id(reading.memory) != reading.job.memory_id:  # another one by that name
                    raise no_memory(reading.memory)
                self.spool.note(reading.job.id, state="reading")
                reading.state = "reading"
                reading.report, forgotten = self._read_into(folder, reading)
            reading.error = None
            self._end(reading, "done", report=reading.report, reason=None, forgotten=forgotten)
            self._metrics.read.labels("texts").inc(reading.report["tokens"])
            self._metrics.reading.observe(time.monotonic() - started)
        except _LaterError as later:
            reading.error = later.why
            self._put_back(reading, _SOON, reason=later.why)
            if later.why is not None:
                reading.end_wait()
        except _TakenBackError:
            if reading.cancelled:
                self._end(reading, "cancelled")
            else:  # the service stops
                self._note(reading, state="waiting")
        except Exception as error:
            self._failed(reading, error)
        self._registry.record_change(reading.memory)

    def _failed(self, reading: Reading, error: Exception) -> None:
        refusal = refusal_of(error)
        if self._is_gone(reading):  # with all that was to be read into it
            self.spool.remove(reading.job.id)
            self._drop(reading)
            return
        if refusal.code == "memory_busy" and isinstance(error, ApiError):  # this service itself changes it
            self._put_back(reading, _SOON)
            return
        self._metrics.errors.labels(refusal.code or "error").inc()
        shown = error if refusal.status >= 500 else None
        _LOGGER.warning("a reading failed", exc_info=shown, extra={"reading": reading.job.id})
        reading.attempts += 1
        reading.error = refusal.message
        noted = {"attempts": reading.attempts, "reason": reading.error}
        unknown = refusal.status >= 500 and not _is_passing(error, refusal)
        if _is_passing(error, refusal) or (unknown and reading.attempts < _MOST_FAILURES):
            self._put_back(reading, min(_LONGEST_PAUSE, 2.0**reading.attempts), **noted)
        else:  # a text that cannot be read is of no use; one that met a fault of the service's may be tried again
            self._end(reading, "failed", **noted, **({} if unknown else {"bytes": 0}))
        reading.end_wait()

    def _is_gone(self, reading: Reading) -> bool:
        """Return whether the memory of a reading is not there any more. OSError says nothing of that."""
        try:
            return self._registry.id(reading.memory) != reading.job.memory_id
        except ApiError:
            return True
        except (EverlongError, OSError):
            return False

    def _put_back(self, reading: Reading, seconds: float, **noted: Any) -> None:
        """Let a reading wait in front of the others of its memory, for so many seconds at least."""
        if reading.cancelled:
            self._end(reading, "cancelled")
            return
        reading.state, reading.not_before = "waiting", time.monotonic() + seconds
        self._note(reading, state="waiting", tokens=max(reading.tokens, reading.job.tokens), **noted)
        self.queue.put(reading, anyway=True, first=True)

    def _end(self, reading: Reading, state: str, **noted: Any) -> None:
        assert state in OVER
        self._note(reading, state=state, tokens=reading.tokens, **noted)
        reading.state = state
        self._drop(reading)

    def _drop(self, reading: Reading) -> None:
        if reading.state not in OVER:
            reading.state = "cancelled"
        if self._live.get(reading.job.id) is reading:  # and not another try
            del self._live[reading.job.id]
        reading.end_wait()

    def _note(self, reading: Reading, **fields: Any) -> None:
        """Note what became of a reading. A disk that is full keeps the older note, by which it is tried again."""
        try:
            self.spool.note(reading.job.id, **fields)
        except OSError as error:
            _LOGGER.warning("a reading could not be noted: %s", error, extra={"reading": reading.job.id})

    def _read_into(self, folder: Path, reading: Reading) -> tuple[dict[str, Any], int]:
        """Return the report, and how often something had been forgotten in the memory by then."""
        job, named = reading.job, reading.job.metadata
        happened: Time | None = None if named.happened is None else parse_time(named.happened)
        file = self.spool.file(job)
        with self._loaded.opened_memory(folder, self._host_bytes, make=False) as mm:
            if mm.memory.id != job.memory_id:
                raise no_memory(job.memory)
            self._require_not_forgotten(mm.memory, reading)
            if named.plain:
                given = FileTexts([FileText([file.read_text(encoding="utf-8")], named.source)])
            else:
                given = file_texts(file, called=job.file)
            report = mm.read(
                given,
                source=named.source,
                origin=job.origin,
                tags=named.tags,
                happened=happened,
                progress=self._progress_of(reading, mm),
            )
            self._settle(mm, reading)
            mm.searcher.heads.look_if_due()  # here, and not in front of the first question
            return dataclasses.asdict(report), mm.memory.forgotten_generation

    def _require_not_forgotten(self, memory: Memory, reading: Reading) -> None:
        """End a reading of which a part was read, and forgotten by another process before it went on."""
        now, noted = memory.forgotten_generation, self.spool.job(reading.job.id)
        half_read = noted is not None and noted.tokens and noted.forgotten != now
        if half_read and not any(memory.blocks(source, limit=1) for source in reading.job.sources):
            reading.cancelled = True
            raise _TakenBackError
        self.spool.note(reading.job.id, forgotten=now)

    def _progress_of(self, reading: Reading, mm: MemoryModel) -> Callable[[int, int | None], None]:
        """Return what is told of each chunk. It counts, and ends the reading where it must."""
        a_token = mm.memory.core.page_bytes(mm.config.archive.page_tokens) / mm.config.archive.page_tokens
        left = self._quotas.bytes_left(reading.key)
        before, written, noted = 0, 0, time.monotonic()

        def progress(tokens: int, of: int | None) -> None:
            nonlocal before, written, noted
            more = tokens - before if tokens >= before else tokens  # a file of several texts counts each anew
            before, written = tokens, written + more
            reading.tokens, reading.of = tokens, of
            self._quotas.count(reading.key, more)
            self._require_turn(reading)
            if left is not None and written * a_token > left:
                raise too_many("the key has its bytes on disk: forget something", 60, "quota_exceeded")
            if more and not self._quotas.has_tokens(reading.key):
                raise _LaterError("the key had its tokens of this minute")
            if more and time.monotonic() > noted + _NOTED:  # it is not this text that ends the process
                noted = time.monotonic()
                self.spool.note(reading.job.id, tokens=tokens, crashes=0)

        return progress

    def _require_turn(self, reading: Reading) -> None:
        """End a reading that nobody wants any more, or whose memory somebody else wants to change."""
        if reading.cancelled or self._stopping.is_set():
            raise _TakenBackError
        if self._registry.has_waiting_writer(reading.memory) and time.monotonic() > reading.began + _LEAST_TURN:
            raise _LaterError

    def _settle(self, mm: MemoryModel, reading: Reading) -> None:
        """Return once all that is stored with blocks is there: vectors, Detail Tokens, topics."""
        settled: concurrent.futures.Future[None] = concurrent.futures.Future()

        def settle() -> None:
            try:
                mm.searcher.settle()
                settled.set_result(None)
            except BaseException as error:
                settled.set_exception(error)

        # Closing the memory ends the wait of this thread, too.
        threading.Thread(target=settle, name="everlong settling", daemon=True).start()
        while not concurrent.futures.wait([settled], timeout=0.1).done:
            self._require_turn(reading)
        settled.result()


def _is_passing(error: Exception, refusal: ApiError) -> bool:
    """Return whether a failure may be none later: of a disk, of RAM, of a busy memory, of a quota."""
    of_the_moment = isinstance(error, MemoryBusyError | MemoryNotFoundError | CapacityError | MemoryError)
    return of_the_moment or isinstance(error, OSError) or refusal.status in (429, 503, 507)
