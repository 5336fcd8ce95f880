"""Responses that are kept, so that a later request goes on with one by its id."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_MOST_SECONDS = 30 * 86400.0
_MOST = 100_000


class KeptResponses:
    """A file of responses, durable when `keep` returns. Thread-safe."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS responses "
            "(id TEXT PRIMARY KEY, key TEXT, memory TEXT, created REAL, body TEXT, messages TEXT)"
        )

    def keep(self, id: str, key: str, memory: str, body: dict[str, Any], messages: Sequence[Any]) -> None:
        """Keep a response, with all messages up to its answer. What is too old, or too many, goes."""
        now = time.time()
        row = (id, key, memory, now, json.dumps(body), json.dumps(messages))
        with self._lock:
            self._db.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?)", row)
            self._db.execute("DELETE FROM responses WHERE created < ?", (now - _MOST_SECONDS,))
            self._db.execute("DELETE FROM responses WHERE rowid <= (SELECT max(rowid) FROM responses) - ?", (_MOST,))

    def body(self, id: str, key: str) -> dict[str, Any] | None:
        """Return a response of that key; None where it has none of that id."""
        found = self._row("body", id, key)
        return None if found is None else dict(json.loads(found[0]))

    def messages(self, id: str, key: str) -> tuple[str, list[dict[str, str]]] | None:
        """Return the memory of a response, and its messages."""
        found = self._row("memory, messages", id, key)
        return None if found is None else (str(found[0]), list(json.loads(found[1])))

    def delete(self, id: str, key: str) -> bool:
        """Delete a response. Return whether it was there."""
        with self._lock:
            return self._db.execute("DELETE FROM responses WHERE id = ? AND key = ?", (id, key)).rowcount > 0

    def forget(self, memory: str) -> None:
        """Delete all responses from a memory, as something was taken out of it that they may tell."""
        with self._lock:
            self._db.execute("DELETE FROM responses WHERE memory = ?", (memory,))

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _row(self, columns: str, id: str, key: str) -> Any:
        with self._lock:
            found = self._db.execute(f"SELECT {columns} FROM responses WHERE id = ? AND key = ?", (id, key))
            return found.fetchone()
