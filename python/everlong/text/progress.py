"""Signs of life of what takes over a second and cannot be counted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from rich.text import Text

from everlong.text.terminal import escaping_console, say, shown

EVERY = 10.0  # seconds from one line to the next, where standard error is no terminal


@contextlib.contextmanager
def working(label: str, *, enabled: bool) -> Iterator[None]:
    """Show a sign of life on standard error, where nothing can be counted: without a terminal a line now and then."""
    console, over = escaping_console(stderr=True), threading.Event()
    if not enabled:
        yield
    elif console.is_terminal:
        with console.status(Text(shown(label))):
            yield
    else:
        teller = threading.Thread(target=tell_until, args=(label, over.wait), daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join()


def tell_until(label: str, over: Callable[[float], bool]) -> None:
    """Say a line each time that `over`, which waits so many seconds, returns False."""
    seconds = 0.0
    while not over(EVERY):
        seconds += EVERY
        say(f"{label}: {seconds:.0f} s", stderr=True)
