"""What the child process runs first: limits, before anything else is imported, and then a path of its own.

It is run as a file, by a Python that obeys no environment, looks into no working folder and has no `site`: so far it
can import Python's own library alone. What it is told are plain words: what is more would have to be parsed first.
"""

import resource
import sys


def limited(seconds: int, ram: int) -> None:
    """Have the system limit what this process may take. A limit that is lower already stays."""
    for limit, value in (
        (resource.RLIMIT_AS, ram),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 0),  # it writes no file
        (resource.RLIMIT_CORE, 0),
    ):
        _, most = resource.getrlimit(limit)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(limit, (value, value))
    import signal

    signal.alarm(seconds + 1)  # for the case that the parent, which has the clock, is gone


def begin(seconds: str, ram: str, most: str, suffix: str, package: str, *libraries: str) -> None:
    """Parse standard input. `package` is everlong's own folder, `libraries` are those where packages are installed."""
    limited(int(seconds), int(ram))
    import types

    sys.path += libraries  # behind Python's own, so that nothing stands in the place of those
    everlong = types.ModuleType("everlong")  # its own first lines ask for torch
    everlong.__path__ = [package]
    sys.modules["everlong"] = everlong
    from everlong.files.child import main

    main(suffix, int(most), (*libraries, package))


if __name__ == "__main__":
    begin(*sys.argv[1:])
