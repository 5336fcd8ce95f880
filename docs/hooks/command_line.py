"""The page of the command line is the command line's own help: a hook of mkdocs."""

from __future__ import annotations

import re

import typer
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click
from typer.main import get_command

import everlong.cli

PAGE = "cli.md"
_COMMAND_LIST = re.compile(r"\*\*Commands\*\*:\n\n(\* .*\n)+\n")


def on_page_markdown(markdown: str, /, *, page: Page, **_: object) -> str:
    """The page's own text, then every command with its arguments and options."""
    if page.file.src_uri != PAGE:
        return markdown
    command = get_command(everlong.cli.app.app)
    with typer.Context(command, info_name="everlong") as context:
        commands = get_docs_for_click(obj=command, ctx=context, name="everlong", indent=1)
    # The lists of commands cut their descriptions short; the headings that follow say the same.
    return f"{markdown}\n{_COMMAND_LIST.sub('', commands)}"
