"""What a notebook shows of an object: short HTML, in which everything that came from a text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable

CONVERSATION = "conversation"  # shown in place of the source "", for what was said
_LONGEST = 2000  # characters of a passage
_MOST_ROWS = 20


def unfolding(head: str, body: str) -> str:
    """Return a line that unfolds to a passage."""
    shown = body if len(body) <= _LONGEST else f"{body[: _LONGEST - 1]}…"
    return f"<details><summary>{html.escape(head)}</summary><blockquote>{_lines(shown)}</blockquote></details>"


def paragraph(text: str) -> str:
    """Return text as a paragraph, with its lines."""
    return f"<p>{_lines(text)}</p>"


def table(rows: Iterable[tuple[str, object]]) -> str:
    """Return names and values as a table. Numbers have separators, and of many rows the first are shown."""
    listed = list(rows)
    told = [f"<tr><th>{html.escape(name)}</th><td>{_value(value)}</td></tr>" for name, value in listed[:_MOST_ROWS]]
    more = len(listed) - _MOST_ROWS
    return f"<table>{''.join(told)}</table>" + (f"<p>{more:,} more</p>" if more > 0 else "")


def _value(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return html.escape(f"{value:,.1f}" if isinstance(value, float) else str(value))


def _lines(text: str) -> str:
    return html.escape(text.strip()).replace("\n", "<br>")
