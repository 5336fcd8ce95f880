"""`everlong list | forget`: what a memory holds of some sources, tags or times, and letting go of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from everlong.cli.app import Json, app, print_json, require_exists
from everlong.cli.options import FilterOptions, grouped
from everlong.text.notebook_html import CONVERSATION
from everlong.text.progress import show_working
from everlong.text.terminal import escape_controls, escaping_console, print_escaped

if TYPE_CHECKING:
    from everlong.memory.records import Block
    from everlong.memory.sources import Source


@app.command("list")
@grouped
def list_sources(
    *,
    memory: Annotated[Path, typer.Argument(help="Folder of the memory.")],
    filters: FilterOptions,
    blocks: Annotated[bool, typer.Option(help="List every block.")] = False,
    as_json: Json = False,
) -> None:
    """List what a memory holds, by source: all, or what the options choose. No model is loaded."""
    from everlong.memory import Memory
    from everlong.memory.sources import sources_of

    require_exists(memory, folder=True)
    with Memory.open(memory, read_only=True) as kept:
        found = kept.blocks(where=filters.where())
    if as_json:
        more = {"blocks": [dataclasses.asdict(block) for block in found]} if blocks else {}
        print_json({"sources": [dataclasses.asdict(source) for source in sources_of(found)], **more})
        return
    print_escaped(_count_text(found))
    print_sources(sources_of(found))
    if blocks:
        print_blocks(found)


@app.command()
@grouped
def forget(
    *,
    memory: Annotated[Path, typer.Argument(help="Folder of the memory.")],
    filters: FilterOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it takes, and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
    compact: Annotated[bool, typer.Option(help="Remove the bytes from the disk, too, as `everlong compact`.")] = True,
    as_json: Json = False,
) -> None:
    """Forget what the options choose: a source, a tag, a time, a role. No model is loaded.

    It shows first what it takes, and asks. What is forgotten is found by nothing from then on, and is not brought back.
    What was asked and answered about it stays: --role asked --role said forgets conversations.
    """
    from everlong.memory import Memory
    from everlong.memory.sources import sources_of

    where = filters.where()
    if not where.chooses:
        raise typer.BadParameter("name what to forget: --source, --tag, --after, --before, --role or --origin")
    require_exists(memory, folder=True)
    with Memory.open(memory, read_only=True) as kept:
        found = kept.blocks(where=where)
    if not as_json:
        print_escaped(_count_text(found))
        print_sources(sources_of(found))
    if found and not dry_run and not yes:
        typer.confirm("Forget this?", abort=True)
    forgotten = freed = 0
    if found and not dry_run:
        with Memory.open(memory) as kept, show_working(f"{memory}, forgetting", enabled=not as_json):
            there = {block.id for block in kept.blocks(where=where)}
            forgotten = kept.forget([block.id for block in found if block.id in there])  # what was listed, and no more
            freed = kept.compact() if compact else 0
    if as_json:
        sources = [dataclasses.asdict(source) for source in sources_of(found)]
        print_json({"sources": sources, "forgotten_blocks": forgotten, "freed_bytes": freed})
    elif forgotten:
        print_escaped(f"{memory}: {forgotten:,} blocks forgotten, {freed / 1e6:,.1f} MB given back")


def print_sources(sources: Iterable[Source]) -> None:
    """Print a table of sources."""
    table = Table()
    table.add_column("source")
    for heading in ("tokens", "blocks", "MB", "first read, UTC", "last read, UTC"):
        table.add_column(heading, justify="right")
    for source in sources:
        megabytes = f"{source.payload_bytes / 1e6:,.1f}"
        first, last = (moment[:16].replace("T", " ") for moment in (source.first, source.last))  # to the minute
        table.add_row(escape_controls(source.shown), f"{source.tokens:,}", str(source.blocks), megabytes, first, last)
    escaping_console().print(table)


def print_blocks(blocks: Iterable[Block]) -> None:
    """Print a line for each block."""
    from everlong.memory.origins import unreadable_in

    for block in blocks:
        first, last = block.span
        print_escaped(
            f"block {block.id}: tokens {first:,}-{last:,}, {block.source or CONVERSATION}, "
            f"{block.payload_bytes:,} bytes, {block.created_at.isoformat(timespec='seconds')}"
            + "".join(f", cannot be read: {tag}" for tag in unreadable_in(block.tags))
        )


def _count_text(blocks: list[Block]) -> str:
    tokens = sum(block.span[1] - block.span[0] for block in blocks)
    return f"{tokens:,} tokens in {len(blocks):,} blocks"
