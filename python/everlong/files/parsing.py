"""Parses a file in a child process, within limits of time and RAM."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import site
import stat
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from typing import Final

import everlong.files
from everlong.files import records
from everlong.files.document import NoTextError, ParseResult, UnreadableFileError
from everlong.files.kind import HEAD, kind_of
from everlong.files.plain import decoded, of_text
from everlong.files.without_links import open_without_links
from everlong.paths import from_home


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one file may take."""

    seconds: float = 120.0  # on the clock
    ram: int = 1 << 30  # bytes, of the child process
    file_bytes: int = 256 << 20  # of the file itself
    text_bytes: int = 256 << 20  # of all documents


LIMITS: Final = Limits()

# A child takes a tenth of a second, which a folder of a thousand notes would wait for a thousand times. Of a text as
# short as that, our own few lines of Python (`plain.py`) take some MB of RAM and a fifth of a second at worst.
SMALL: Final = 256 << 10  # bytes
_PACKAGE = pathlib.Path(everlong.files.__file__).parents[1]
_LONGEST_ENDING = 32
_SHARED = ("LD_LIBRARY_PATH", "TZ")


def parse(
    file: str | os.PathLike[str],
    limits: Limits = LIMITS,
    *,
    name: str | None = None,
    follow_links: bool = True,
    descriptor: int | None = None,
) -> ParseResult:
    """Return the documents of a file. `name`: its name, where that is not the last part of its path. `descriptor`: of
    the file, where it is `opened` already.

    Raises NoTextError for what is no text, or is broken; UnreadableFileError for what takes more than the limits, and
    where a package is missing. Raises OSError where the file cannot be opened, and where it is a link that is not to be
    followed.
    """
    path = from_home(file)
    suffix = _ending(path.name if name is None else name)
    with opened(path, follow_links=follow_links) if descriptor is None else contextlib.nullcontext(descriptor) as found:
        kind = kind_of(os.pread(found, HEAD, 0), suffix)
        size = os.fstat(found).st_size
        if why := too_large(size, limits):
            raise UnreadableFileError(why)
        if kind == "plain" and size <= SMALL:
            with contextlib.suppress(UnicodeDecodeError):  # it is for the child to find out the encoding
                text = decoded(os.pread(found, SMALL, 0), guess=False)
                return ParseResult((of_text(text, suffix),), plain=True)
        os.lseek(found, 0, os.SEEK_SET)  # the child reads from where its standard input stands
        parsed = _in_child(found, suffix, limits)
    if kind == "plain":
        return dataclasses.replace(parsed, plain=True)
    documents = tuple(one.with_head() for one in parsed.documents)
    if all(not section.text or section.text.isspace() for one in documents for section in one.sections):
        raise NoTextError("; ".join(f"{name} {why}" for name, why in parsed.passed_over[:3]) or "has no text")
    return dataclasses.replace(parsed, documents=documents)


def _ending(name: str) -> str:
    """Return the ending of a name, in small letters and without the dot. One that nobody gives a kind is `other`."""
    found = pathlib.PurePath(name).suffix.lower().removeprefix(".")
    return found if found.isascii() and found.isprintable() and len(found) <= _LONGEST_ENDING else "other"


def too_large(size: int, limits: Limits = LIMITS) -> str:
    """Return what is wrong with a file of so many bytes; "" for nothing."""
    return f"has {size:,} bytes; at most {limits.file_bytes:,} are read" if size > limits.file_bytes else ""


def digest_of(descriptor: int) -> str:
    """Return the digest of an opened file's bytes."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb", closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], *, follow_links: bool = True) -> Iterator[int]:
    """Open a file that is one, to read it: a pipe would wait for ever, and a device would not end.

    Without `follow_links` neither it nor a folder above it may be a link, and the path is from the root.
    """
    if follow_links:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    else:
        descriptor = open_without_links(os.fspath(path), os.O_NONBLOCK)
    try:
        about = os.fstat(descriptor)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(f"{path} is a folder, expected a file")
        if not stat.S_ISREG(about.st_mode):
            raise UnreadableFileError("is no ordinary file")
        yield descriptor
    finally:
        os.close(descriptor)


def _in_child(file: int, suffix: str, limits: Limits) -> ParseResult:
    seconds = max(1, round(limits.seconds))
    words = (seconds, limits.ram, limits.file_bytes, suffix, _PACKAGE, *_libraries())
    late = threading.Event()

    def stop() -> None:
        late.set()
        child.kill()

    timer = threading.Timer(limits.seconds, stop)
    timer.daemon = True
    child = subprocess.Popen(
        # -I and -S: no module of the working folder, of PYTHONPATH or of a .pth file, and no sitecustomize.
        [sys.executable, "-I", "-S", "-B", os.fspath(_PACKAGE / "files" / "start.py"), *map(str, words)],
        stdin=file,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**_environment(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # Ctrl-C is the parent's alone, and ends the child below
    )
    try:
        timer.start()
        assert child.stdout is not None  # for mypy
        return records.read(child.stdout, limits.text_bytes)
    except UnreadableFileError:
        if late.is_set():
            raise UnreadableFileError(f"takes more than {limits.seconds:g} seconds to read") from None
        raise
    finally:
        timer.cancel()
        child.kill()
        if child.stdout is not None:
            child.stdout.close()
        child.wait()


def _libraries() -> list[str]:
    """Return the folders where packages are installed.

    sys.path is not asked: it holds the working folder, a script's, and what the environment says.
    """
    found = [*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE and "PYTHONUSERBASE" not in os.environ:
        found.append(site.getusersitepackages())
    if any(_PACKAGE.parent.glob("everlong-*.dist-info")):  # `pip install --target` puts all beside everlong
        found.append(str(_PACKAGE.parent))
    return list(dict.fromkeys(filter(os.path.isabs, found)))


def _environment() -> dict[str, str]:
    """Return what a Python may need to start: its own shared libraries, but none of a folder that is relative."""
    kept = {name: os.environ[name] for name in _SHARED if name in os.environ}
    if "LD_LIBRARY_PATH" in kept:
        kept["LD_LIBRARY_PATH"] = ":".join(filter(os.path.isabs, kept["LD_LIBRARY_PATH"].split(":")))
    return {name: value for name, value in kept.items() if value}
