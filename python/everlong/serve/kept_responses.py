"""Responses that are kept, so that a later request goes on with one by its id."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from everlong.serve.records import Records
from everlong.serve.shelf import State

KEPT_SECONDS = 30 * 86400.0
_MOST_EACH = 20_000  # of one key


class KeptResponses:
    """Rows of the service's records, durable when `keep` returns. Thread-safe.

    A response is bound to its memory, and to how often something had been forgotten there when its answer began. What
    is older than the newest forgetting may tell what was forgotten: it is not kept, and not told any more.
    """

    def __init__(self, records: Records, state_of: Callable[[str], State | None]) -> None:
        """`state_of` returns the state of the memory of that name now; None where there is none."""
        self._records, self._state_of = records, state_of

    def keep(self, id: str, key: str, memory: str, state: State, body: dict[str, Any], messages: Sequence[Any]) -> bool:
        """Keep a response, with all messages up to its answer. Return whether it is kept.

        `memory`: "" is the model alone. `state`: of the memory when the answer began. What is too old, or too many of
        one key, goes.
        """
        now = time.time()
        with self._records.changing():  # a forgetting removes rows behind this, or is seen here
            if memory and self._state_of(memory) != state:
                return False
            bound = self._records.memory(memory, state.id) if memory else None
            self._records.change(
                "INSERT INTO responses (id, memory, forgotten, key, created, body, messages) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (id, bound, state.forgotten, key, now, json.dumps(body), json.dumps(messages)),
            )
            self._records.change("DELETE FROM responses WHERE created < ?", (now - KEPT_SECONDS,))
            self._records.change(
                "DELETE FROM responses WHERE key = ? AND number <= "
                "(SELECT number FROM responses WHERE key = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
                (key, key, _MOST_EACH),
            )
        return True

    def body(self, id: str, key: str) -> dict[str, Any] | None:
        """Return a response of that key; None where it has none of that id."""
        found = self._row("r.body", id, key)
        return None if found is None else dict(json.loads(found[0]))

    def messages(self, id: str, key: str) -> tuple[str, list[dict[str, str]]] | None:
        """Return the memory of a response, and its messages."""
        found = self._row("coalesce(m.name, ''), r.messages", id, key)
        return None if found is None else (str(found[0]), list(json.loads(found[1])))

    def delete(self, id: str, key: str) -> bool:
        """Delete a response. Return whether it was there."""
        found = self._records.change("DELETE FROM responses WHERE id = ? AND key = ?", (id, key)) > 0
        self._records.overwrite()
        return found

    def forget(self, memory: str, state: State | None) -> None:
        """Delete all responses of a memory that began before its present state; None: it is gone."""
        self._records.change(
            "DELETE FROM responses WHERE memory IN (SELECT number FROM memories WHERE name = ?) AND forgotten != ?",
            (memory, -1 if state is None else state.forgotten),
        )

    def retire(self, key: str, seconds: float) -> int:
        """Delete a key's responses that are older than it keeps what it wrote. Return how many."""
        return self._records.change("DELETE FROM responses WHERE key = ? AND created < ?", (key, time.time() - seconds))

    def bytes_of(self, key: str) -> int:
        """Return how many bytes of responses a key has here."""
        ((size,),) = self._records.rows(
            "SELECT coalesce(sum(length(body) + length(messages)), 0) FROM responses WHERE key = ?", (key,)
        )
        return int(size)

    def _row(self, columns: str, id: str, key: str) -> Any:
        found = self._records.rows(
            f"SELECT m.name, m.id, r.forgotten, {columns} FROM responses r LEFT JOIN memories m ON m.number = r.memory "
            "WHERE r.id = ? AND r.key = ?",
            (id, key),
        )
        if not found:
            return None
        name, memory_id, forgotten, *row = found[0]
        if name is not None and self._state_of(name) != State(memory_id, forgotten):
            self._records.change("DELETE FROM responses WHERE id = ?", (id,))
            return None
        return row
