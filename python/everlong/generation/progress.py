"""Shows the progress of what is counted in tokens."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator

from everlong.frame.interrupts import interrupts_between_steps
from everlong.text.progress import EVERY
from everlong.text.terminal import escaping_console, say, shown

# Of a reading: no progress, a bar, or a function of the tokens read so far and those in all, None until that is known.
Progress = bool | Callable[[int, int | None], None]


@contextlib.contextmanager
def track_tokens(
    label: str, *, enabled: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int, int], None] | None]:
    """Draw a bar over tokens on standard error, or in a notebook. Gives the function that advances it, None when off.

    The function takes how many tokens are done since the last call, and how many there are, as far as is known. Without
    a terminal there is a line every ten seconds in place of the bar.
    """
    console = escaping_console(stderr=True)
    if not enabled:
        yield None
        return
    if console.is_jupyter:
        with _notebook_bar(label) as advance:
            yield advance
        return
    if not console.is_terminal:
        yield _in_lines(label, clock)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn("tokens"))
    with Progress(*columns, TimeRemainingColumn(), transient=True, console=console) as bar:
        task = bar.add_task(shown(label), total=None)
        yield lambda tokens, total: bar.update(task, advance=tokens, total=total)


@contextlib.contextmanager
def _notebook_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets it draws text, and says so
        from tqdm.auto import tqdm

        bar = tqdm(desc=shown(label), unit=" tokens", leave=False)

    def advance(tokens: int, total: int) -> None:
        if bar.total != total:
            bar.total = total
            bar.refresh()
        bar.update(tokens)

    with contextlib.closing(bar):
        yield advance


def _in_lines(label: str, clock: Callable[[], float]) -> Callable[[int, int], None]:
    done, told = 0, clock()

    def advance(tokens: int, total: int) -> None:
        nonlocal done, told
        done += tokens
        if clock() - told >= EVERY:
            told = clock()
            say(f"{label}: {done:,} of {total:,} tokens", stderr=True)

    return advance


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
