"""Signs of life of what takes over a second and cannot be counted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from rich.text import Text

from everlong.text.terminal import escape_controls, escaping_console, print_escaped

EVERY = 10.0  # seconds from one line to the next, where standard error is no terminal


@contextlib.contextmanager
def show_working(label: str, *, enabled: bool) -> Iterator[None]:
    """Show a sign of life on standard error, where nothing can be counted: without a terminal a line now and then."""
    console, over = escaping_console(stderr=True), threading.Event()
    if not enabled:
        yield
    elif console.is_terminal:
        with console.status(Text(escape_controls(label))):
            yield
    else:
        teller = threading.Thread(target=report_until, args=(label, over.wait), daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join()


def report_until(label: str, over: Callable[[float], bool]) -> None:
    """Say a line each time that `over`, which waits so many seconds, returns False."""
    seconds = 0.0
    while not over(EVERY):
        seconds += EVERY
        print_escaped(f"{label}: {seconds:.0f} s", stderr=True)
