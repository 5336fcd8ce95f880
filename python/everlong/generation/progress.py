"""Shows the progress of anything that takes over a second."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import rich.progress
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

# Of a reading: no progress, a bar, or a function of the tokens read so far and those in all, None until that is known.
Progress = bool | Callable[[int, int | None], None]


@contextlib.contextmanager
def working(label: str, *, enabled: bool) -> Iterator[None]:
    """Show a sign of life on standard error's terminal, where nothing can be counted."""
    with Console(stderr=True).status(escape(label)) if enabled else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def track_tokens(label: str, *, enabled: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Draw a bar over tokens on standard error's terminal. Gives the function that advances it, None when off.

    The function takes how many tokens are done since the last call, and how many there are, as far as is known.
    """
    if not enabled:
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn("tokens"))
    with rich.progress.Progress(*columns, TimeRemainingColumn(), transient=True, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=None)
        yield lambda tokens, total: bar.update(task, advance=tokens, total=total)
