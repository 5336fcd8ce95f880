"""Shows the progress of what is counted in tokens."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator

from everlong.kv_cache.interrupts import interrupts_between_steps
from everlong.text.progress import EVERY
from everlong.text.terminal import escape_controls, escaping_console, print_escaped

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
        task = bar.add_task(escape_controls(label), total=None)
        yield lambda tokens, total: bar.update(task, advance=tokens, total=total)


@contextlib.contextmanager
def _notebook_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets it draws text, and says so
        from tqdm.auto import tqdm

        bar = tqdm(desc=escape_controls(label), unit=" tokens", leave=False)

    def advance(tokens: int, total: int) -> None:
        if bar.total != total:
            bar.total = total
            bar.refresh()
        bar.update(tokens)

    with contextlib.closing(bar):
        yield advance


def _in_lines(label: str, clock: Callable[[], float]) -> Callable[[int, int], None]:
    done, report = 0, clock()

    def advance(tokens: int, total: int) -> None:
        nonlocal done, report
        done += tokens
        if clock() - report >= EVERY:
            report = clock()
            print_escaped(f"{label}: {done:,} of {total:,} tokens", stderr=True)

    return advance


class ProgressReporter:
    """Tells the progress of a reading, and ends it at Ctrl-C between two steps."""

    def __init__(self, report: Progress, advance: Callable[[int, int], None] | None, step: Callable[[], None]) -> None:
        self.done = 0
        self.step = step
        self._callback, self._advance = report, advance

    def advance(self, tokens: int, total: int, *, whole: bool = True) -> None:
        """So many tokens more were read of `total`, which is `whole` or may still grow."""
        self.done += tokens
        if self._advance is not None:
            self._advance(tokens, total)
        self.report(total if whole else None)
        self.step()

    def report(self, total: int | None) -> None:
        if callable(self._callback):
            self._callback(self.done, total)


@contextlib.contextmanager
def report_progress(progress: Progress, label: str) -> Iterator[ProgressReporter]:
    """Wrap a reading."""
    with interrupts_between_steps() as step, track_tokens(label, enabled=progress is True) as advance:
        yield ProgressReporter(progress, advance, step)
