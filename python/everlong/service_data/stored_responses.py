"""Responses that are kept, so that a later request goes on with one by its id."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from everlong.service_data.file_store import FileStore
from everlong.service_data.memory_registry import MemoryState
from everlong.service_data.records import Records

STORED_SECONDS = 30 * 86400.0
_MOST_EACH = 20_000  # of one key


@dataclasses.dataclass(frozen=True)
class StoredResponse:
    """A response as it is kept."""

    memory: str  # "" is the model alone
    state: MemoryState | None  # of the memory now
    body: dict[str, Any]
    messages: list[dict[str, str]]  # all up to its answer


class StoredResponses:
    """A file and a row each, durable when `keep` returns. Thread-safe.

    A response is bound to its memory, and to how often something had been forgotten there when its answer began. What
    is older than the newest forgetting may tell what was forgotten: it is not kept, and not told any more.
    """

    def __init__(self, root: Path, records: Records, state_of: Callable[[str], MemoryState | None]) -> None:
        """`root`: a folder of its own. `state_of` returns the state of the memory of that name now; None: there is
        none.
        """
        self._records, self._state_of = records, state_of
        self._contents = FileStore(root, lambda: {str(id) for (id,) in records.rows("SELECT id FROM responses")})

    def keep(
        self,
        id: str,
        key: str,
        memory: str,
        state: MemoryState,
        body: dict[str, Any],
        messages: Sequence[Any],
        most: int | None = None,
    ) -> bool:
        """Keep a response, with all messages up to its answer. Return whether it is kept.

        `memory`: "" is the model alone. `state`: of the memory when the answer began. `most`: bytes that it may have.
        What is too old, or too many of one key, goes.
        """
        now, content = time.time(), json.dumps({"body": body, "messages": messages}).encode()
        if most is not None and len(content) > most:
            return False
        try:
            with self._contents.begin(id) as file:
                file.write(content)
                self._contents.finish(file)
            with self._records.changing():
                bound = self._records.memory(memory, state.id) if memory else None
                self._records.change(
                    "INSERT INTO responses (id, memory, forgotten, folder, key, created, bytes) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (id, bound, state.forgotten, state.folder, key, now, len(content)),
                )
            self._contents.named(id)
        except BaseException:
            self._contents.remove([id])
            raise
        if memory and self._state_of(memory) != state:  # a forgetting from now on finds the row
            self._delete("id = ?", (id,))
            return False
        self._delete("created < ?", (now - STORED_SECONDS,))
        newest = "(SELECT number FROM responses WHERE key = ? ORDER BY number DESC LIMIT 1 OFFSET ?)"
        self._delete(f"key = ? AND number <= {newest}", (key, key, _MOST_EACH))
        return True

    def one(self, id: str, key: str) -> StoredResponse | None:
        """Return a response of that key; None where it has none of that id, or not any more."""
        found = self._records.rows(
            "SELECT m.name, m.id, r.forgotten, r.folder, r.id FROM responses r "
            "LEFT JOIN memories m ON m.number = r.memory WHERE r.id = ? AND r.key = ?",
            (id, key),
        )
        if not found:
            return None
        name, memory_id, forgotten, folder, own_id = found[0]
        state = None if name is None else self._state_of(name)
        if name is not None and state != MemoryState(memory_id, forgotten, folder):
            self._delete("id = ?", (own_id,))
            return None
        try:
            content = json.loads(self._contents.path(own_id).read_bytes())
        except FileNotFoundError:  # it was deleted meanwhile
            return None
        return StoredResponse(name or "", state, content["body"], content["messages"])

    def delete(self, id: str, key: str) -> bool:
        """Delete a response. Return whether it was there."""
        return self._delete("id = ? AND key = ?", (id, key)) > 0

    def forget(self, memory: str, state: MemoryState | None) -> None:
        """Delete all responses of a memory that began before `state`, or from another folder that was in its place.

        None: it is gone, and so are its responses.
        """
        if state is not None and self._state_of(memory) == state:  # it is not past
            of_it = "memory IN (SELECT number FROM memories WHERE name = ? AND id = ?)"
            self._delete(f"{of_it} AND (forgotten, folder) != (?, ?)", (memory, *dataclasses.astuple(state)))

    def retire(self, key: str, seconds: float) -> None:
        """Delete a key's responses that are older than it keeps what it wrote."""
        self._delete("key = ? AND created < ?", (key, time.time() - seconds))

    def clean(self) -> None:
        """Remove the responses that went with their memory."""
        self._contents.clean()

    def bytes_of(self, key: str) -> int:
        """Return how many bytes of responses a key has here."""
        ((size,),) = self._records.rows("SELECT coalesce(sum(bytes), 0) FROM responses WHERE key = ?", (key,))
        return int(size)

    def _delete(self, which: str, parameters: Sequence[Any]) -> int:
        """Delete the responses of which a condition holds, rows first. Return how many."""
        with self._records.changing():
            ids = [str(id) for (id,) in self._records.rows(f"SELECT id FROM responses WHERE {which}", parameters)]
            if ids:
                self._records.change(f"DELETE FROM responses WHERE {which}", parameters)
        self._contents.remove(ids)
        return len(ids)
