"""Texts that were accepted: each a file under an id of the service's own, and a row that says what is to be done."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from everlong.memory.text_input import name_of
from everlong.service_data.file_store import FileStore
from everlong.service_data.memory_registry import MemoryState, no_memory
from everlong.service_data.records import Records

_TOLD = 1000  # readings of a memory that are over, whose end is still told
_COLUMNS = (
    "r.id, m.name, m.id, r.key, r.number, r.file, r.source, r.tags, r.happened, r.plain, r.bytes, "
    "r.state, r.attempts, r.crashes, r.tokens, r.forgotten, r.reason, r.report"
)
_FROM = "FROM readings r JOIN memories m ON m.number = r.memory"
OVER = ("done", "failed", "cancelled")


@dataclasses.dataclass(frozen=True)
class TextMetadata:
    """The names under which a text is read."""

    source: str = ""
    tags: tuple[str, ...] = ()
    happened: str | None = None
    plain: bool = False  # it was sent as text, not as a file


@dataclasses.dataclass(frozen=True)
class ReadingJob:
    """A text to read into a memory, and what came of it."""

    id: str
    memory: str  # its name
    memory_id: str  # the memory's own id, to which it is bound
    key: str
    number: int  # they are read in this order
    file: str  # what the caller calls it: content, and no name of a file
    metadata: TextMetadata
    bytes: int = 0
    state: str = "waiting"  # then "reading", then one of OVER
    attempts: int = 0
    crashes: int = 0  # how often the process ended while it was read, and came no further than the time before
    tokens: int = 0  # read before
    forgotten: int = 0  # how often something had been forgotten in the memory when they were read
    reason: str | None = None  # why the last attempt failed
    report: dict[str, Any] | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of which its blocks have one, as far as that is known before it is read."""
        return (self.metadata.source,) if self.metadata.source else (self.file, name_of(self.file))

    @property
    def origin(self) -> str:
        """Where its blocks say that they were read from."""
        return "" if self.metadata.plain else f"upload:{self.file}"


class Spool:
    """One process uses it. Thread-safe."""

    def __init__(self, root: Path, records: Records, id_of: Callable[[str], str]) -> None:
        """`id_of` returns the own id of the memory of that name. Files that no row names were not accepted, and go."""
        self._records, self._id_of = records, id_of
        self._begun: dict[str, tuple[str, str, int]] = {}  # by id: what it is called, whose it is, its bytes
        self._lock = threading.Lock()
        self._contents = FileStore(root, lambda: {str(id) for (id,) in records.rows("SELECT id FROM readings")})

    def begin(self, name: str, key: str = "", expected: int = 0) -> tuple[str, IO[bytes]]:
        """Open a new file. Return its id, and the file to write into.

        `name` is what the caller calls it. Its `expected` bytes count as the key's (`bytes_of`) from now on.
        """
        id = uuid.uuid4().hex
        file = self._contents.begin(id)
        with self._lock:
            self._begun[id] = (name, key, expected)
        return id, file

    def accept(
        self, id: str, file: IO[bytes], memory: str, key: str, metadata: TextMetadata, memory_id: str | None = None
    ) -> ReadingJob:
        """Make a file that was written whole durable, and return its order.

        `memory_id`: of the memory for which it was sent. ApiError where there is another one by now.
        """
        size = self._contents.finish(file)
        there = self._id_of(memory)
        if memory_id is not None and memory_id != there:
            raise no_memory(memory)
        called, tags = self._begun[id][0], json.dumps(metadata.tags)
        size += len(f"{called}{metadata.source}{tags}".encode())
        with self._records.changing():
            bound = self._records.memory(memory, there)
            ((number,),) = self._records.rows(
                "INSERT INTO readings (id, memory, key, created, bytes, file, source, tags, happened, plain, state) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'waiting') RETURNING number",
                (
                    *(id, bound, key, time.time(), size, called),
                    *(metadata.source, tags, metadata.happened, metadata.plain),
                ),
            )
        self._contents.named(id)
        with self._lock:
            del self._begun[id]
        return ReadingJob(id, memory, there, key, number, called, metadata, size)

    def file(self, job: ReadingJob) -> Path:
        """Return where the text of an order stands."""
        return self._contents.path(job.id)

    def job(self, id: str) -> ReadingJob | None:
        """Return an order as it is noted now."""
        return next(iter(self._jobs("WHERE r.id = ?", (id,))), None)

    def jobs(self, memory_id: str, memory: str) -> list[ReadingJob]:
        """Return all orders of a memory, in their order."""
        return self._jobs("WHERE m.id = ? AND m.name = ? ORDER BY r.number", (memory_id, memory))

    def waiting_jobs(self) -> list[ReadingJob]:
        """Return what was accepted and is not over, in its order; what was at work when a process ended comes last."""
        found = self._jobs("WHERE r.state IN ('waiting', 'reading') ORDER BY r.number", ())
        return sorted(found, key=lambda job: job.state == "reading" or job.crashes > 0)

    def note(self, id: str, **fields: Any) -> None:
        """Note durably what became of an order: columns of its row. What was read or taken back has no text any more.

        Of a memory's orders that are over the newest are kept.
        """
        if "report" in fields:
            fields["report"] = json.dumps(fields["report"])
        with self._records.changing():
            self._records.change(
                f"UPDATE readings SET {', '.join(f'{name} = ?' for name in fields)} WHERE id = ?",
                (*fields.values(), id),
            )
            if fields.get("state") in OVER:
                self._keep_newest(id)
        if fields.get("state") in ("done", "cancelled") or fields.get("bytes") == 0:
            self._contents.remove([id])

    def take_up_again(self, id: str) -> ReadingJob | None:
        """Let an order that failed wait again. Return it; None where it did not, or has no text any more."""
        waits = "UPDATE readings SET state = 'waiting', crashes = 0 WHERE id = ? AND state = 'failed' AND bytes > 0"
        return self.job(id) if self._records.change(waits, (id,)) else None

    def retire(self, key: str, seconds: float) -> None:
        """Forget a key's orders that are over and older than it keeps what it wrote."""
        over = "key = ? AND created < ? AND state IN ('done', 'failed', 'cancelled')"
        for (id,) in self._records.rows(f"SELECT id FROM readings WHERE {over}", (key, time.time() - seconds)):
            self.remove(str(id))

    def remove(self, id: str) -> None:
        """Forget an order with its text: it was refused, or what it says is to be forgotten."""
        self._records.change("DELETE FROM readings WHERE id = ?", (id,))
        self._contents.remove([id])
        with self._lock:
            self._begun.pop(id, None)

    def clean(self) -> None:
        """Remove the texts of orders that went with their memory."""
        self._contents.clean()

    def has_older(self, memory: str, state: MemoryState) -> bool:
        """Return whether an order of a memory was read before something was forgotten there: it may tell its name."""
        return bool(
            self._records.rows(
                f"SELECT 1 {_FROM} WHERE m.name = ? AND m.id = ? AND r.state = 'done' AND r.forgotten != ? LIMIT 1",
                (memory, state.id, state.forgotten),
            )
        )

    def keep_named(self, memory: str, state: MemoryState, has: Callable[[str], bool]) -> None:
        """Keep of the orders that were read only those of which the memory `has` a source still."""
        for job in self.jobs(state.id, memory):
            if job.state == "done":
                if any(map(has, job.sources)):
                    self.note(job.id, forgotten=state.forgotten)
                else:
                    self.remove(job.id)

    def set_aside(self, key: str) -> int:
        """Return how many texts of a key failed, and may be tried again."""
        ((count,),) = self._records.rows(
            "SELECT count(*) FROM readings WHERE key = ? AND state = 'failed' AND bytes > 0", (key,)
        )
        return int(count)

    def expect(self, id: str, expected: int) -> None:
        """Count so many bytes for a file that is being written."""
        with self._lock:
            name, key, before = self._begun[id]
            self._begun[id] = (name, key, max(before, expected))

    def bytes_of(self, key: str) -> int:
        """Return how many bytes of texts a key has here, with those that are being sent."""
        ((kept,),) = self._records.rows(
            "SELECT coalesce(sum(bytes), 0) FROM readings WHERE key = ? AND state NOT IN ('done', 'cancelled')", (key,)
        )
        with self._lock:
            return int(kept) + sum(size for _, whose, size in self._begun.values() if whose == key)

    def _keep_newest(self, id: str) -> None:
        """Remove the oldest orders of the memory of an order that are over and hold no text."""
        over = "memory = (SELECT memory FROM readings WHERE id = ?) AND state IN ('done', 'cancelled', 'failed')"
        over += " AND (bytes = 0 OR state != 'failed')"
        newest = f"SELECT number FROM readings WHERE {over} ORDER BY number DESC LIMIT 1 OFFSET ?"
        self._records.change(f"DELETE FROM readings WHERE {over} AND number <= ({newest})", (id, id, _TOLD))

    def _jobs(self, chosen: str, parameters: Sequence[Any]) -> list[ReadingJob]:
        return [_order_of(row) for row in self._records.rows(f"SELECT {_COLUMNS} {_FROM} {chosen}", parameters)]


def _order_of(row: Sequence[Any]) -> ReadingJob:
    id, memory, memory_id, key, number, file, source, tags, happened, plain, *rest, report = row
    metadata = TextMetadata(source, tuple(json.loads(tags)), happened, bool(plain))
    fields = None if report is None else json.loads(report)
    size, state, attempts, crashes, tokens, forgotten, reason = rest
    of_text = (id, memory, memory_id, key, number, file, metadata, size)
    return ReadingJob(*of_text, state, attempts, crashes, tokens, forgotten, reason, fields)
