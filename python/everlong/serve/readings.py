"""The thread that reads: one text after the other, in the background, each with its progress."""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from everlong.generation.given_file import GivenText, GivenTexts, file_texts
from everlong.memory.where import Time, parse_time
from everlong.serve.errors import ApiError, refusal_of, too_many
from everlong.serve.fair_queue import FairQueue
from everlong.serve.limits import Limits
from everlong.serve.loaded import Loaded
from everlong.serve.metrics import Metrics
from everlong.serve.shelf import Shelf
from everlong.serve.spool import Order, Spool

_LOGGER = logging.getLogger("everlong.serve")
_KEPT = 1000  # readings that are over, whose end is still told


class _TakenBackError(Exception):
    """Ends a reading that nobody wants any more."""


@dataclasses.dataclass(eq=False)
class Reading:
    """A text on its way into a memory."""

    order: Order
    state: str = "waiting"  # then "reading", then "done", "failed", "cancelled"
    tokens: int = 0  # read so far
    of: int | None = None  # in all, where that is known
    report: dict[str, Any] | None = None
    error: str | None = None
    cancelled: bool = False
    over: threading.Event = dataclasses.field(default_factory=threading.Event)

    @property
    def key(self) -> str:
        return self.order.key

    @property
    def memory(self) -> str:
        return self.order.memory

    def told(self) -> dict[str, Any]:
        """Return it for a caller."""
        return {
            "id": self.order.id,
            "object": "memory.reading",
            "memory": self.memory,
            "source": self.order.named.source or self.order.file,
            "status": self.state,
            "tokens": self.tokens,
            "total_tokens": self.of,
            "report": self.report,
            "error": self.error,
        }


class Readings:
    """Reads texts into memories. Thread-safe."""

    def __init__(
        self, loaded: Loaded, shelf: Shelf, limits: Limits, metrics: Metrics, host_bytes: int | None = None
    ) -> None:
        self._loaded, self._shelf, self._metrics = loaded.for_another_thread(), shelf, metrics
        self._host_bytes = host_bytes
        self.spool = Spool(shelf.own / "spool")
        self.queue: FairQueue[Reading] = FairQueue(limits.readings, limits.readings)
        self._known: collections.OrderedDict[str, Reading] = collections.OrderedDict()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="everlong readings", daemon=True)
        self.after: Callable[[Reading], None] = lambda reading: None  # called when one is over
        self.left: Callable[[str], int | None] = lambda key: None  # bytes that a key may still write; None: any
        for order in self.spool.waiting():
            self.put(order)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def put(self, order: Order) -> Reading:
        """Let an accepted text wait for its turn. ApiError 429 where too many wait."""
        reading = Reading(order)
        if self._stopping.is_set() or not self.queue.put(reading):
            self.spool.remove(order.id)
            raise too_many("too many texts wait to be read", 30, "queue_full")
        self._known[order.id] = reading
        return reading

    def of(self, memory: str) -> list[Reading]:
        """Return the readings of a memory that are known still, oldest first."""
        return [reading for reading in list(self._known.values()) if reading.memory == memory]

    def one(self, memory: str, id: str) -> Reading:
        """Return a reading. ApiError where it is not known."""
        reading = self._known.get(id)
        if reading is None or reading.memory != memory:
            raise ApiError(404, f"{memory!r} has no reading {id[:80]!r}", "reading_not_found")
        return reading

    def stop(self) -> None:
        """End the reading at work between two chunks. It goes on when the service starts again."""
        self._stopping.set()
        self.queue.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            reading = self.queue.take(wait=0.5)
            if reading is not None:
                self._read(reading)

    def _read(self, reading: Reading) -> None:
        started = time.monotonic()
        try:
            if reading.cancelled:
                raise _TakenBackError
            reading.state = "reading"
            with self._shelf.writing(reading.memory, patience=600) as folder:
                self._shelf.there(reading.memory)  # it may have been removed meanwhile
                report = self._read_into(folder, reading)
            reading.report, reading.state = report, "done"
            self._metrics.read.labels("texts").inc(report["tokens"])
            self._metrics.reading.observe(time.monotonic() - started)
        except _TakenBackError:
            if self._stopping.is_set() and not reading.cancelled:
                return  # its order stays
            reading.state = "cancelled"
        except Exception as error:
            refusal = refusal_of(error)
            self._metrics.errors.labels(refusal.code or "error").inc()
            shown = error if refusal.status >= 500 else None
            _LOGGER.warning("a reading failed", exc_info=shown, extra={"reading": reading.order.id})
            reading.state, reading.error = "failed", refusal.message
        self.spool.remove(reading.order.id)
        self._shelf.changed(reading.memory)
        reading.over.set()
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        self.after(reading)

    def _read_into(self, folder: Any, reading: Reading) -> dict[str, Any]:
        order, named = reading.order, reading.order.named

        happened: Time | None = None if named.happened is None else parse_time(named.happened)
        with self._loaded.opened(folder, self._host_bytes) as mm:
            if named.plain:
                text = self.spool.file(order).read_text(encoding="utf-8")
                given = GivenTexts([GivenText([text], named.source)])
            else:
                given = file_texts(self.spool.file(order))
            left = self.left(order.key)
            a_token = mm.memory.core.page_bytes(mm.config.archive.page_tokens) / mm.config.archive.page_tokens

            def progress(tokens: int, of: int | None) -> None:
                reading.tokens, reading.of = tokens, of
                if reading.cancelled or self._stopping.is_set():
                    raise _TakenBackError
                if left is not None and tokens * a_token > left:
                    raise too_many("the key has its bytes on disk: forget something", 60, "quota_exceeded")

            report = mm.read(
                given,
                source=named.source,
                origin="" if named.plain else f"upload:{order.file}",
                tags=named.tags,
                happened=happened,
                progress=progress,
            )
            mm.searcher.heads.look_if_due()  # here, and not in front of the first question
        return dataclasses.asdict(report)
