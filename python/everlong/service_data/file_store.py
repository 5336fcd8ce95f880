"""What callers sent and were told: files under ids of the service's own, each named by a row of its records."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import IO

from everlong.service_data.service_folder import discard, sync


class FileStore:
    """A folder of files. Thread-safe."""

    def __init__(self, root: Path, known: Callable[[], Set[str]]) -> None:
        """`known` returns the ids that rows name. Files that none names are of a process that was killed, and go."""
        self._root, self._known = root, known
        self._begun: set[str] = set()
        self._lock = threading.Lock()
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.clean()

    def begin(self, id: str) -> IO[bytes]:
        """Open a new file to write into. Until it is `named` or removed, no row need name it."""
        with self._lock:
            self._begun.add(id)
        return os.fdopen(os.open(self.path(id), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")

    def finish(self, file: IO[bytes]) -> int:
        """Make a file that was written whole durable. Return its bytes."""
        file.flush()
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        file.close()
        sync(self._root)
        return size

    def named(self, id: str) -> None:
        """Note that a row names a file."""
        with self._lock:
            self._begun.discard(id)

    def path(self, id: str) -> Path:
        return self._root / id

    def remove(self, ids: Iterable[str]) -> None:
        for id in ids:
            self.path(id).unlink(missing_ok=True)
            self.named(id)

    def clean(self) -> None:
        """Remove the files that no row names."""
        files = list(self._root.iterdir())
        with self._lock:
            begun = set(self._begun)  # before the rows are asked: what is named by then has its row
        known = self._known() | begun
        for file in files:
            if file.name not in known:
                discard(file)
