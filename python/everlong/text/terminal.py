"""Text as a terminal shows it. Nothing that a file, a model or a memory holds can drive the terminal.

Everything that everlong prints goes through `say` or an `escaping_console`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult

# What turns the direction of text, and what some terminals take for an end of line.
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_LINE_ENDS = (0x2028, 0x2029)
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))  # C0 with ESC, DEL, and C1
_SURROGATES = range(0xD800, 0xE000)  # no encoding has them
_ESCAPED = {code: ascii(chr(code))[1:-1] for code in (*_CONTROLS, *_DIRECTIONS, *_LINE_ENDS, *_SURROGATES)}
_ESCAPED_IN_LINES = {code: escaped for code, escaped in _ESCAPED.items() if chr(code) not in "\n\t"}


def escape_controls(text: object, *, lines: bool = False) -> str:
    """Return text with its control characters escaped as Python writes them. `lines` keeps ends of lines and tabs."""
    return str(text).translate(_ESCAPED_IN_LINES if lines else _ESCAPED)


def print_escaped(text: object, *, lines: bool = False, stderr: bool = False, end: str = "\n") -> None:
    """Print text at once, as `shown` returns it."""
    print(escape_controls(text, lines=lines), end=end, flush=True, file=sys.stderr if stderr else sys.stdout)


def escaping_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console that shows every text as it is: without markup, and with control characters escaped."""
    made = Console(stderr=stderr, quiet=quiet, markup=False, emoji=False)
    made.push_render_hook(_EscapingHook())
    return made


def line_by_line(console: Console) -> Callable[[str], None]:
    """Return a log that prints each line as it is; a terminal wraps it by itself."""
    return lambda line: console.print(line, highlight=False, soft_wrap=True)


class _EscapingHook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_EscapedRenderable(one) for one in renderables]


class _EscapedRenderable:
    """What is drawn, with its texts escaped. What the console itself says to the terminal passes."""

    def __init__(self, drawn: ConsoleRenderable) -> None:
        self._drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._drawn, options):
            yield segment if segment.control else segment._replace(text=escape_controls(segment.text, lines=True))
