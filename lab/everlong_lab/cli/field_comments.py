"""The help texts in a class: its docstring, and for each field of a dataclass the comment beside or above it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pathlib
import textwrap
from collections.abc import Sequence


def comment_at(lines: Sequence[str], first: int, last: int) -> str:
    """Return the comment of a field in lines `first` to `last`, counted from 1; "" where it has none."""
    _, mark, comment = lines[last - 1].partition("  # ")
    if not mark:
        above = first - 2
        while above >= 0 and lines[above].lstrip().startswith("# "):
            comment = f"{lines[above].strip()[2:]} {comment}".strip()
            above -= 1
    return comment[:1].upper() + comment[1:]


def comments_of(settings: type) -> dict[str, str]:
    """Return the comments by field of a dataclass. For an inherited field the comment that was written last counts."""
    found: dict[str, str] = {}
    for own in reversed(settings.__mro__):
        if dataclasses.is_dataclass(own):
            text = textwrap.dedent(inspect.getsource(own))
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    comment = comment_at(text.splitlines(), node.lineno, node.end_lineno or node.lineno)
                    found[node.target.id] = comment or found.get(node.target.id, "")
    return found


def docstring_in(file: pathlib.Path, name: str) -> str:
    """Return the docstring of a class in a file that is not imported; "" without one."""
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return ast.get_docstring(node) or ""
    return ""
