"""Parses a file in a child process, within limits of time and RAM."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import stat
import subprocess
import sys
import threading
from typing import IO, Any, Final

from everlong.files.document import Document, Parsed, Section, UnreadableFileError
from everlong.files.kind import HEAD, kind_of
from everlong.files.plain import decoded, of_text
from everlong.paths import from_home


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one file may take."""

    seconds: float = 120.0  # on the clock
    ram: int = 1 << 30  # bytes, of the child process
    file_bytes: int = 256 << 20  # of the file itself, unless it is plain text
    text_bytes: int = 64 << 20  # of all documents


LIMITS: Final = Limits()
_CODE = (
    "import json, sys; given = json.loads(sys.argv[1]); sys.path[:] = given['path']; "
    "from everlong.files.child import main; main(**given['with'])"
)
_SHARED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "HOME")


def parse(file: str | os.PathLike[str], limits: Limits = LIMITS) -> Parsed:
    """Return the documents of a file.

    Raises UnreadableFileError for what is no text, is broken, or takes more than the limits. Raises OSError where the
    file cannot be opened.
    """
    path = from_home(file)
    suffix = path.suffix.lower().removeprefix(".")
    with _opened(path) as found:
        kind = kind_of(os.pread(found.fileno(), HEAD, 0), suffix)
        if kind == "plain":
            try:
                text = decoded(found.read(), guess=False)
                if "\0" in text and suffix not in ("txt", ""):
                    raise UnreadableFileError("holds no text: it has zero bytes")
                return Parsed((of_text(text, suffix),), plain=True)
            except UnicodeDecodeError:  # it is for the child to find out the encoding
                found.seek(0)
        size = os.fstat(found.fileno()).st_size
        if size > limits.file_bytes:
            raise UnreadableFileError(f"has {size:,} bytes; at most {limits.file_bytes:,} are read")
        parsed = dataclasses.replace(_in_child(found, suffix, limits), plain=kind == "plain")
    if not any(document.text.strip() for document in parsed.documents):
        raise UnreadableFileError("; ".join(f"{name} {why}" for name, why in parsed.passed_over[:3]) or "has no text")
    return parsed


def _opened(path: pathlib.Path) -> IO[bytes]:
    """Open a file that is one: a pipe would wait for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fdopen(descriptor, "rb")
    about = os.fstat(descriptor)
    if stat.S_ISREG(about.st_mode):
        return found
    found.close()
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(f"{path} is a folder, expected a file")
    raise UnreadableFileError("is no ordinary file")


def _in_child(file: IO[bytes], suffix: str, limits: Limits) -> Parsed:
    given = {
        "path": [os.path.abspath(path) for path in sys.path],
        "with": {
            "suffix": suffix,
            "seconds": max(1, round(limits.seconds)),
            "ram": limits.ram,
            "output": 2 * limits.text_bytes,
        },
    }
    environment = {name: os.environ[name] for name in _SHARED if name in os.environ}
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _CODE, json.dumps(given)],
        stdin=file,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**environment, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # Ctrl-C is the parent's alone, and ends the child below
    ) as child:
        late = threading.Event()

        def stop() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(limits.seconds, stop)
        timer.start()
        try:
            assert child.stdout is not None
            # A hostile child may print without end, so no more is read than it may say.
            printed = child.stdout.read(4 * limits.text_bytes)
        finally:
            timer.cancel()
            child.kill()
    if late.is_set():
        raise UnreadableFileError(f"takes more than {limits.seconds:g} seconds to read")
    return _parsed(printed.decode("utf-8", "replace").splitlines())


def _parsed(lines: list[str]) -> Parsed:
    """Return what the child printed. It is not trusted either: what does not fit is an error."""
    documents: list[Document] = []
    passed_over: list[tuple[str, str]] = []
    try:
        for line in lines:
            found = json.loads(line)
            if "error" in found:
                raise UnreadableFileError(str(found["error"]))
            if "end" in found:
                return Parsed(tuple(documents), tuple(passed_over))
            if "why" in found:
                passed_over.append((str(found["passed over"]), str(found["why"])))
            else:
                documents.append(_document(found))
    except (KeyError, TypeError, AttributeError) as error:
        raise UnreadableFileError(f"cannot be read: {error}") from None
    except json.JSONDecodeError:
        pass
    raise UnreadableFileError("takes more time or RAM than a file may, or ends the process that reads it")


def _document(found: dict[str, Any]) -> Document:
    sections = tuple(Section(str(one["place"]), str(one["text"])) for one in found["sections"])
    happened = found["happened"]
    return Document(
        sections,
        str(found["name"]),
        str(found["title"]),
        str(found["author"]),
        None if happened is None else float(happened),
    )
