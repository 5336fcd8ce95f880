"""What a command says when Ctrl-C or a wrong command line ends it."""

from __future__ import annotations

import contextlib
import contextvars
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

from typer.core import TyperGroup

from everlong.errors import EverlongError
from everlong.text.terminal import escape_controls, print_escaped

_OF_LAB = ("demo", "eval", "train", "tune")


class Commands(TyperGroup):
    """All commands. After Ctrl-C it says what is kept and which command goes on; the exit code is then 130."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in _OF_LAB:
            raise EverlongError(f"`everlong {cmd_name}` comes with another package: pip install 'everlong[lab]'")
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _escaped():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        _kept.set(lambda: "")
        try:
            with _escaped():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            kept = _kept.get()()
            print_escaped(
                f"\neverlong: stopped. {escape_controls(kept) or 'Nothing of it is kept'}", lines=True, stderr=True
            )
            typed = shlex.join(["everlong", *sys.argv[1:]])
            print_escaped(f"{'Go on with' if kept else 'Begin again with'}: {typed}", stderr=True)
            raise


_kept: contextvars.ContextVar[Callable[[], str]] = contextvars.ContextVar("kept", default=lambda: "")


def interruption_message(kept: Callable[[], str]) -> None:
    """Let Ctrl-C say what `kept` returns: what of the command at work is there, so that it goes on when typed again."""
    _kept.set(kept)


@contextlib.contextmanager
def _escaped() -> Iterator[None]:
    """Context manager: the message about a wrong command line quotes no control character, as a file's name has."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own errors, whichever click it comes with
            error.message = escape_controls(error.message)  # type: ignore[attr-defined]
        raise
