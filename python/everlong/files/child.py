"""What the child process runs: it parses one file, which is its standard input, and prints the documents as JSON.

It may do nothing but compute. The system limits its time and RAM, and lets it write no file. An audit hook refuses what
a library might be led to do: open another file, connect, run a program. libxml2 asks no hook, so its parsers are told
to load nothing.
"""

from __future__ import annotations

import dataclasses
import json
import mimetypes
import os
import resource
import sys
from collections.abc import Callable, Iterator

_REFUSED = (
    *("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate"),
    *("os.utime", "os.kill", "shutil.", "tempfile.", "ftplib.", "smtplib.", "urllib.", "http.", "webbrowser."),
)


def main(suffix: str, seconds: int, ram: int, output: int) -> None:
    """Parse standard input, within so many seconds of computing, bytes of RAM, and bytes of output."""
    sys.dont_write_bytecode = True
    mimetypes.knownfiles = []  # a library asks for types of files, and /etc is not to be read
    with open(0, "rb", closefd=False) as file:
        data = file.read()
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    for limit, value in (
        (resource.RLIMIT_AS, ram),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    sys.addaudithook(guard(tuple(os.path.realpath(path) + os.sep for path in (*sys.path, sys.prefix, sys.base_prefix))))
    written = 0
    for line in _lines(data, suffix):
        written += len(line)
        if written > output:
            line = json.dumps({"error": f"has more than {output:,} bytes of text"})
        told.write(line + "\n")
        if written > output:
            break
    told.flush()
    os._exit(0)  # nothing is left to do, and nothing of the file's may run


def _lines(data: bytes, suffix: str) -> Iterator[str]:
    from everlong.files.content import PassedOverError, documents_in
    from everlong.files.document import UnreadableFileError

    try:
        for found in documents_in(data, suffix):
            if isinstance(found, PassedOverError):
                yield json.dumps({"passed over": found.name, "why": str(found)[:500]})
            else:
                yield json.dumps(dataclasses.asdict(found.with_head()))
        yield json.dumps({"end": True})
    except UnreadableFileError as error:
        yield json.dumps({"error": str(error)[:500]})
    except MemoryError:
        yield json.dumps({"error": "takes more RAM than a file may"})
    except RecursionError:
        yield json.dumps({"error": "is nested too deep"})
    except ImportError as error:
        yield json.dumps({"error": f"needs a package that is missing ({error.name}): pip install 'everlong[files]'"})
    except Exception as error:  # a library's own, about bytes that it did not expect
        yield json.dumps({"error": f"cannot be read: {type(error).__name__}: {str(error)[:300]}"})


def guard(libraries: tuple[str, ...]) -> Callable[[str, tuple[object, ...]], None]:
    """Return a hook that lets files of Python's libraries be read, and nothing else be done."""
    reading = os.O_RDONLY | os.O_CLOEXEC

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int):
                return
            asked = os.path.realpath(os.fsdecode(path)) if isinstance(path, str | bytes) else ""
            if asked.startswith(libraries) and isinstance(flags, int) and flags & ~reading == 0:
                return
        elif not event.startswith(_REFUSED):
            return
        raise PermissionError(f"a file that is read may not do this: {event}")

    return hook
