"""Errors as OpenAI's clients expect them: a status, and an object that says what is wrong."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everlong.errors import (
    BrokenFrameError,
    CapacityError,
    CorruptMemoryError,
    EverlongError,
    MemoryBusyError,
    MemoryExistsError,
    MemoryIOError,
    MemoryNotFoundError,
    ModelMismatchError,
    NewerFormatError,
)

_LOGGER = logging.getLogger("everlong.serve")

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_DISK = (errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM)
# What errors of the library become, the first that fits.
_STATUS: tuple[tuple[type[Exception], int, str], ...] = (
    (MemoryNotFoundError, 404, "memory_not_found"),
    (MemoryExistsError, 409, "memory_exists"),
    (MemoryBusyError, 409, "memory_busy"),
    (ModelMismatchError, 409, "model_mismatch"),
    (NewerFormatError, 409, "newer_format"),
    (BrokenFrameError, 500, "broken_frame"),
    (CorruptMemoryError, 500, "corrupt_memory"),
    (CapacityError, 507, "no_room"),
    (ValueError, 400, "invalid_value"),
    (TypeError, 400, "invalid_value"),
    (OverflowError, 400, "invalid_value"),
)
# What a caller is told in place of words that name a file of the service. The others are in the log.
_WORDS = {
    "memory_not_found": "there is no such memory, or no such block",
    "memory_exists": "there is a memory of that name",
    "memory_busy": "the memory is being written: try again later",
    "model_mismatch": "the memory is of another model or tokenizer than this service's",
    "newer_format": "the memory was written by a later release",
    "broken_frame": "an earlier error left the memory's frame of no use: ask again",
    "corrupt_memory": "the memory is damaged",
    "no_room": "there is no room for it",
}
_OTHER_WORDS = "it was refused for a reason that names a file of the service: its log says which"
# A path from the root of the disk. One in an address or between words is none.
_PATH = re.compile(r"(?<![\w/:.])/[\w.~-]")
_private: set[str] = set()


class ApiError(Exception):
    """A refusal. `param` names the field that is wrong, `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The object that is sent."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def too_many(message: str, seconds: float, code: str = "rate_limit_exceeded") -> ApiError:
    """Return the refusal of a caller who may come again after so many seconds."""
    return ApiError(429, message, code, headers={"Retry-After": str(max(1, round(seconds)))})


def refusal_of(error: BaseException) -> ApiError:
    """Return what a caller is told of an error. What nobody expected is told without its words."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError | FileExistsError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        if full or error.errno in _DISK or isinstance(error, MemoryIOError):
            return ApiError(
                507, "the disk is full" if full else "the disk refuses", "disk_full" if full else "disk_error"
            )
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            return ApiError(status, _message(error, code), code)
    if isinstance(error, EverlongError):
        return ApiError(500, _message(error, ""), type(error).__name__)
    return ApiError(500, "the service failed; its log says how, under this request's id", "internal_error")


def hide_private_paths(folder: Path) -> None:
    """Note a folder whose path no refusal tells, also one from the folder of the moment."""
    _private.update({f"{folder}/", f"{folder.absolute()}/", f"{folder.resolve()}/"})


def _message(error: BaseException, code: str) -> str:
    """Return an error's words, or others for it where they name a file of the service."""
    said = str(error)
    if not _PATH.search(said) and not any(folder in f"{said}/" for folder in _private):
        return said
    _LOGGER.warning("a refusal is told in other words than: %s", said)
    return _WORDS.get(code, _OTHER_WORDS)
