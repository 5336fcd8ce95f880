"""The thread that answers: several answers at once, a token of each in turn."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

from everlong.serve.fair_queue import FairQueue
from everlong.service_data.errors import ApiError, too_many
from everlong.service_data.limits import Limits

_LOGGER = logging.getLogger("everlong.serve")

_IDLE = 0.5  # seconds that the thread sleeps at most where nothing waits

# What is done step by step: it yields pieces for the caller, and returns what they add up to.
Work = Generator[Any, None, Any]


@dataclasses.dataclass(frozen=True)
class JobEnd:
    """The end of a job: what it returned, or why it failed."""

    value: Any = None
    error: BaseException | None = None


class Job:
    """Something to compute for one caller, who waits for it in an asyncio loop."""

    def __init__(self, key: str, memory: str, work: Callable[[], Work]) -> None:
        """`work` is called, and its steps are taken, in the answering thread."""
        self.key, self.memory = key, memory
        self.work = work
        self.put_at = time.monotonic()
        self.taken_at: float | None = None
        self.steps: Work | None = None
        self.cancelled = False
        self.leave: Callable[[], None] = lambda: None  # gives up its place in the queue
        self._loop = asyncio.get_running_loop()
        self._out: asyncio.Queue[Any] = asyncio.Queue()

    def cancel(self) -> None:
        """Say that nobody waits for it any more. Any thread may."""
        self.cancelled = True
        self.leave()

    def publish(self, what: Any) -> None:
        """Hand something to the caller. For the answering thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody listens
            self._loop.call_soon_threadsafe(self._out.put_nowait, what)

    async def next(self) -> Any:
        """Return the next piece, or an `JobEnd`. Raise what went wrong."""
        found = await self._out.get()
        if isinstance(found, JobEnd) and found.error is not None:
            raise found.error
        return found

    async def result(self) -> Any:
        """Return what it returned, without its pieces."""
        while not isinstance(found := await self.next(), JobEnd):
            pass
        return found.value


class Engine:
    """Computes jobs in one thread, in turn. Thread-safe.

    `Limits.at_once` jobs are at work at once. A key without any is let in beyond that, up to twice as many: whoever has
    several long answers does not keep the others waiting. Each job at work takes a step in turn.

    All of the service's answers are computed here. A batch engine may take its place: it has `put`, `soon` and `stop`.
    """

    def __init__(self, limits: Limits, waited: Callable[[float], None] = lambda seconds: None) -> None:
        """`waited` is told how long each job waited."""
        self._limits, self._waited = limits, waited
        self.queue: FairQueue[Job] = FairQueue(limits.waiting, limits.waiting_each)
        self._active: list[Job] = []
        self._soon: list[tuple[Callable[[], None], concurrent.futures.Future[None]]] = []
        self._begun = 0
        self.prefers: Callable[[Job], bool] = lambda job: True  # which job is cheaper to begin now
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="everlong answers", daemon=True)

    @property
    def active_jobs(self) -> int:
        return len(self._active)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def put(self, job: Job) -> None:
        """Let a job wait for its turn. ApiError 429 where too many wait, 503 once it stops."""
        if self._stopping.is_set():
            raise ApiError(503, "the service stops", "stopping", headers={"Retry-After": "10"})
        job.leave = lambda: self._left(job)
        if not self.queue.put(job):
            raise too_many("too many questions wait", 5, "queue_full")

    def _left(self, job: Job) -> None:
        if self.queue.remove(job):
            job.publish(JobEnd(error=_gone()))

    def soon(self, do: Callable[[], None]) -> concurrent.futures.Future[None]:
        """Do something between two steps, in the answering thread. Return what is done with it."""
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        if not self.alive:  # nobody answers: nobody is in its way
            self._do(do, done)
        else:
            self._soon.append((do, done))
            self.queue.wake()
        return done

    def interrupt(self, memory: str, error: ApiError) -> None:
        """End the answers from a memory that are under way. For the answering thread."""
        for job in [one for one in self._active if one.memory == memory and one.steps is not None]:
            self._active.remove(job)
            assert job.steps is not None
            with contextlib.suppress(BaseException):
                job.steps.throw(error)
            job.publish(JobEnd(error=error))

    def stop(self, seconds: float) -> None:
        """Take no job any more, let those at work end within `seconds`, and end the others."""
        self._stopping.set()
        for job in self.queue.close():
            job.publish(JobEnd(error=ApiError(503, "the service stops", "stopping", headers={"Retry-After": "10"})))
        self._thread.join(seconds)
        for job in list(self._active):
            job.cancel()
        self._thread.join()

    def _run(self) -> None:
        while True:
            while self._soon:
                self._do(*self._soon.pop(0))
            self._admit()
            if not self._active and self._stopping.is_set() and not self._soon:
                return
            for job in list(self._active):
                if job in self._active:  # no other one's step has ended it
                    self._step(job)

    def _admit(self) -> None:
        while not self._stopping.is_set():
            job = self._next()
            if job is None:
                break
            self._begin(job)
        if not self._active and not self._soon and (job := self.queue.take(wait=_IDLE)) is not None:
            self._begin(job)

    def _next(self) -> Job | None:
        """Take the job that may begin now, if any."""
        if len(self._active) < self._limits.at_once:
            return self._cheaper() or self.queue.take(wait=0)
        if len(self._active) < 2 * self._limits.at_once:
            at_work = {job.key for job in self._active}
            return self.queue.take(wait=0, ready=lambda job: job.key not in at_work)
        return None

    def _cheaper(self) -> Job | None:
        """Take a job that is cheaper to begin; every fourth time whoever's turn it is."""
        self._begun += 1
        return self.queue.take(wait=0, ready=self.prefers) if self._begun % 4 else None

    def _begin(self, job: Job) -> None:
        job.taken_at = time.monotonic()
        waited = job.taken_at - job.put_at
        self._waited(waited)
        if job.cancelled:
            job.publish(JobEnd(error=_gone()))
            return
        if waited > self._limits.queue_seconds:
            busy = ApiError(503, "the question waited too long", "queue_timeout", headers={"Retry-After": "30"})
            job.publish(JobEnd(error=busy))
            return
        self._active.append(job)

    def _step(self, job: Job) -> None:
        try:
            if job.cancelled:
                if job.steps is not None:
                    job.steps.close()
                raise _gone()
            if job.steps is None:
                job.steps = job.work()
            job.publish(next(job.steps))
        except StopIteration as end:
            self._active.remove(job)
            job.publish(JobEnd(end.value))
        except BaseException as error:
            self._active.remove(job)
            job.publish(JobEnd(error=error))

    @staticmethod
    def _do(do: Callable[[], None], done: concurrent.futures.Future[None]) -> None:
        try:
            do()
        except Exception:
            _LOGGER.exception("something that was to be done between two answers failed")
        finally:
            done.set_result(None)


def _gone() -> ApiError:
    return ApiError(499, "the caller has gone", "cancelled")
