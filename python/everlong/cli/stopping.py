"""What a command says when Ctrl-C or a wrong command line ends it."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

from typer.core import TyperGroup

from everlong.text.terminal import say, shown


class Commands(TyperGroup):
    """All commands. After Ctrl-C it says what is kept and which command goes on; the exit code is then 130."""

    def make_context(self, *given: Any, **named: Any) -> Any:
        with _escaped():
            return super().make_context(*given, **named)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _escaped():
                return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            kept = getattr(stop, "__notes__", [])
            say("", stderr=True)
            say(f"everlong: stopped. {kept[0] if kept else 'Nothing of it is kept'}", stderr=True)
            say(f"{'Go on with' if kept else 'Begin again with'}: {_as_typed()}", stderr=True)
            raise


@contextlib.contextmanager
def if_stopped(kept: Callable[[], str]) -> Iterator[None]:
    """Context manager: Ctrl-C within it says what `kept` returns."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if said := kept():
            stop.add_note(said)
        raise


def _as_typed() -> str:
    return shlex.join(["everlong", *sys.argv[1:]])


@contextlib.contextmanager
def _escaped() -> Iterator[None]:
    """Context manager: the message about a wrong command line quotes no control character, as a file's name has."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own errors, whichever click it comes with
            error.message = shown(error.message)  # type: ignore[attr-defined]
        raise
