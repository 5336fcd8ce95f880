"""What a service writes down: a JSON line for each event, and who read, wrote and forgot what."""

from __future__ import annotations

import contextvars
import datetime
import json
import logging
import os
import re
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

_LOGGER = logging.getLogger("everlong.serve")
_GIVEN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MINE = ("request", "key", "method", "route", "status", "ms", "reading", "memory")

# The id of the request that is served now.
request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")


def id_of(request_id: str | None) -> str:
    """Return a request's id: its own, where that is one, or a new one."""
    return request_id if request_id is not None and _GIVEN_ID.fullmatch(request_id) else uuid.uuid4().hex


class JsonLines(logging.Formatter):
    """One JSON object a line. It has no words of a memory, of a question or of an answer."""

    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, Any] = {
            "time": _now(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        row |= {name: getattr(record, name) for name in _MINE if hasattr(record, name)}
        if "request" not in row and request_id.get():
            row["request"] = request_id.get()
        if record.exc_info:
            row["error"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=True)


def log_as_json() -> None:
    """Write all messages to standard error, a JSON object a line: everlong's, and warnings of what it uses."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.getLogger().handlers = [handler]
    logger = logging.getLogger("everlong")
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.INFO)


class Audit:
    """A file with a line for each question, search, read passage, copy and change: who, what, ids. Thread-safe."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()

    def note(self, key: str, did: str, memory: str, **ids: Any) -> None:
        """Note that a key did something with a memory. `ids` are no content."""
        row = {"time": _now(), "request": request_id.get(), "key": key, "did": did, "memory": memory, **ids}
        try:
            with self._lock:
                os.write(self._file, (json.dumps(row) + "\n").encode())
        except OSError as error:  # what was done is done
            _LOGGER.error("an access was not noted: %s", error.strerror)

    def close(self) -> None:
        os.close(self._file)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
