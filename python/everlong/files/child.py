"""What the child process does: it parses one file, which is its standard input, and tells the documents.

It may do nothing but compute. The system limits its time and RAM, and lets it write no file (`start.py`). An audit hook
refuses what a library might be led to do: open another file, connect, run a program. libxml2 asks no hook, so its
parsers are told to load nothing.
"""

from __future__ import annotations

import mimetypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO

from everlong.files.content import documents_in
from everlong.files.document import Budget, NoTextError, PassedOverError, UnreadableFileError
from everlong.files.records import Writer

_REFUSED = (
    *("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate"),
    *("os.utime", "os.kill", "shutil.", "tempfile.", "ftplib.", "smtplib.", "urllib.", "http.", "webbrowser."),
)


def main(suffix: str, most: int, libraries: Sequence[str]) -> None:
    """Parse standard input, at most so many bytes of it. `libraries`: what may be opened beside Python's own."""
    mimetypes.knownfiles = []  # a library asks for types of files, and /etc is not to be read
    out = os.fdopen(os.dup(1), "wb")
    here = (*sys.path, sys.prefix, sys.base_prefix, *libraries)
    sys.addaudithook(guard(tuple(os.path.realpath(path) + os.sep for path in here)))
    with open(0, "rb", closefd=False) as file:
        _report(Writer(out), file, suffix, most)
    out.flush()
    os._exit(0)  # nothing is left to do, and nothing of the file's may run


def _report(to: Writer, file: BinaryIO, suffix: str, most: int) -> None:
    thrift = Budget()
    try:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, most))  # what is written behind it meanwhile is not read
        for found in documents_in(data, suffix):
            if isinstance(found, PassedOverError):
                to.passed_over(found.name, str(found)[:500])
            else:
                to.document(found, thrift.joined(found.sections))
        to.end()
    except UnreadableFileError as error:
        to.error(str(error)[:500], no_text=isinstance(error, NoTextError))
    except MemoryError:
        to.error("takes more RAM than a file may")
    except RecursionError:
        to.error("is nested too deep")
    except ImportError as error:
        missing = f"needs a package that is missing ({error.name}): pip install 'everlong[files]'"
        to.error(missing if error.name else str(error)[:500])
    except Exception as error:  # a library's own, about bytes that it did not expect; or the system's, which may pass
        no_text = not isinstance(error, OSError)
        to.error(f"cannot be read: {type(error).__name__}: {str(error)[:300]}", no_text=no_text)


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
