"""What was measured of a model on this machine, kept for the next time.

Files are JSON in `$EVERLONG_CACHE/profiles`, by default `~/.cache/everlong/profiles` (`$XDG_CACHE_HOME` is heeded).
Nothing depends on them: what is missing or damaged is measured anew. An evaluation keeps them in a folder of its own,
because its findings must not depend on what else ran on the machine.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import pathlib
import tempfile
from collections.abc import Iterator

from everlong.paths import absolute

_own_folder: contextvars.ContextVar[pathlib.Path | None] = contextvars.ContextVar("profiles", default=None)


def stored_measurement(name: str) -> str | None:
    """Return what is kept under that name; None where nothing is that can be read."""
    try:
        return _file(name).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def store_measurement(name: str, text: str) -> None:
    """Keep it. A folder that cannot be written is passed over: measuring again costs seconds."""
    try:
        file = _file(name)
    except OSError:
        return
    written = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(text, encoding="utf-8")
        written.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            written.unlink()


@contextlib.contextmanager
def profiles_in(folder: pathlib.Path | None) -> Iterator[None]:
    """Context manager: this thread's models keep profiles in `folder` alone; None: in a folder that goes after it."""
    with contextlib.ExitStack() as undone:
        if folder is None:
            folder = pathlib.Path(undone.enter_context(tempfile.TemporaryDirectory(prefix="everlong-")))
        token = _own_folder.set(folder)
        undone.callback(_own_folder.reset, token)
        yield


def _file(name: str) -> pathlib.Path:
    return (_own_folder.get() or cache_folder() / "profiles") / f"{name}.json"


def cache_folder() -> pathlib.Path:
    named = os.environ.get("EVERLONG_CACHE")
    if named:
        return _at_first(named)
    try:
        home = pathlib.Path.home()
    except RuntimeError as error:  # neither HOME nor an entry for the user, as in some containers
        raise FileNotFoundError(str(error)) from error
    return _at_first(os.environ.get("XDG_CACHE_HOME") or str(home / ".cache")) / "everlong"


@functools.cache
def _at_first(named: str) -> pathlib.Path:
    """Return where a path led when it was first asked for, wherever the process went since."""
    return pathlib.Path(absolute(named))
