"""Shows the progress of anything that takes over a second."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import rich.progress
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from everlong.frame.interrupts import interrupts_between_steps

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


class Telling:
    """Tells the progress of a reading, and ends it at Ctrl-C between two steps."""

    def __init__(self, told: Progress, advance: Callable[[int, int], None] | None, step: Callable[[], None]) -> None:
        self.done = 0
        self.step = step
        self._told, self._advance = told, advance

    def more(self, tokens: int, total: int, *, whole: bool = True) -> None:
        """So many tokens more were read of `total`, which is `whole` or may still grow."""
        self.done += tokens
        if self._advance is not None:
            self._advance(tokens, total)
        self.tell(total if whole else None)
        self.step()

    def tell(self, total: int | None) -> None:
        if callable(self._told):
            self._told(self.done, total)


@contextlib.contextmanager
def telling(progress: Progress, label: str) -> Iterator[Telling]:
    """Wrap a reading."""
    with interrupts_between_steps() as step, track_tokens(label, enabled=progress is True) as advance:
        yield Telling(progress, advance, step)
