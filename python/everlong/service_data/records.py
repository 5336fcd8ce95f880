"""The service's own records: rows of one SQLite file. What a caller sent is content of a row, and names nothing.

Texts and answers are files under ids of the service's own, so that the file of rows is small, and is written anew in no
time whenever something is forgotten.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_LOGGER = logging.getLogger("everlong.serve")
_VERSION = 1
# Rows of a memory go with it. A memory is bound by its own id: one that was made again under its name is another one.
_SCHEMA = """
CREATE TABLE memories (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL, id TEXT NOT NULL, UNIQUE (name, id));
CREATE TABLE readings (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
  memory INTEGER NOT NULL REFERENCES memories ON DELETE CASCADE,
  key TEXT NOT NULL, created REAL NOT NULL, bytes INTEGER NOT NULL,
  file TEXT NOT NULL, source TEXT NOT NULL, tags TEXT NOT NULL, happened TEXT, plain INTEGER NOT NULL,
  state TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, crashes INTEGER NOT NULL DEFAULT 0,
  tokens INTEGER NOT NULL DEFAULT 0, reason TEXT, report TEXT, forgotten INTEGER NOT NULL DEFAULT 0);
CREATE INDEX readings_of_a_memory ON readings (memory, number);
CREATE INDEX readings_of_a_key ON readings (key, state);
CREATE TABLE responses (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
  memory INTEGER REFERENCES memories ON DELETE CASCADE, forgotten INTEGER NOT NULL, folder INTEGER NOT NULL,
  key TEXT NOT NULL, created REAL NOT NULL, bytes INTEGER NOT NULL);
CREATE INDEX responses_of_a_memory ON responses (memory, forgotten);
CREATE INDEX responses_of_a_key ON responses (key, number);
CREATE INDEX responses_by_age ON responses (created);
"""


class Records:
    """One file, durable when a change returns. Thread-safe.

    A file of another release is refused: what it acknowledged is not guessed at.
    """

    def __init__(self, file: Path) -> None:
        self._lock = threading.RLock()
        self._stale = True  # whether pages may have what was deleted, also before this process
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))  # for its owner alone
        self._db = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
            self._db.execute(f"PRAGMA {pragma}")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            with self.changing():
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version={_VERSION}")
        elif version != _VERSION:
            self._db.close()
            raise ValueError(f"{file} is of another release of everlong (records of version {version})")

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Wrap changes that are made together, or not at all."""
        with self._lock:
            if self._db.in_transaction:  # within another one's block
                yield
                return
            with _of_the_disk():
                self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                with _of_the_disk():
                    self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk may have ended it
                    self._db.execute("ROLLBACK")
                raise

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Change rows, durably outside of `changing`. Return how many."""
        with self._lock, _of_the_disk():
            changed = self._db.execute(statement, parameters).rowcount
            self._stale |= changed > 0 and statement.startswith("DELETE")
            return changed

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self._lock, _of_the_disk():
            return self._db.execute(statement, parameters).fetchall()

    def memory(self, name: str, id: str) -> int:
        """Return the number of a memory's row, which is made where it is missing."""
        with self._lock:
            found = self.rows("SELECT number FROM memories WHERE name = ? AND id = ?", (name, id))
            if found:
                return int(found[0][0])
            self.change("INSERT INTO memories (name, id) VALUES (?, ?)", (name, id))
            return self.memory(name, id)

    def remove_memory(self, number: int) -> None:
        """Remove the row of a memory that is gone, with all rows that are bound to it."""
        self.change("DELETE FROM memories WHERE number = ?", (number,))

    def memories(self) -> list[tuple[int, str, str]]:
        """Return number, name and id of the memories that rows are bound to."""
        return [(int(number), str(name), str(id)) for number, name, id in self.rows("SELECT * FROM memories")]

    def overwrite(self) -> None:
        """Leave nothing of what was deleted in any byte of the file and of its log.

        SQLite overwrites what it deletes, but not what it moved between pages before. A disk without room for a copy of
        the rows keeps that until the next call.
        """
        with self._lock:
            if not self._stale:
                return
            try:
                with _of_the_disk():
                    self._db.execute("VACUUM")
                self._stale = False
            except OSError as error:
                _LOGGER.warning("the service's records were not written anew: %s", error)
            with _of_the_disk():
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        with self._lock:
            self._db.close()


@contextlib.contextmanager
def _of_the_disk() -> Iterator[None]:
    """Have a disk that is full, or refuses, raise OSError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        code = errno.ENOSPC if "full" in str(error) else errno.EIO
        raise OSError(code, f"the service's records: {error}") from error
