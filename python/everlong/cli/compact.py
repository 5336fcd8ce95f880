"""`everlong compact`: a memory gives back what it does not need."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from everlong.cli.app import Json, StoredModel, app, model_for, print_json, require_exists, startup_status
from everlong.text.progress import show_working
from everlong.text.terminal import print_escaped


@app.command()
def compact(
    memory: Annotated[Path, typer.Argument(help="Folder of the memory.")],
    codec: Annotated[
        str,
        typer.Option(help="Code every block anew: as transform, int8, int6, int4 or another codec of archive.codec."),
    ] = "",
    quality: Annotated[
        float | None,
        typer.Option(help="Of transform: the most KL, in nats a token, that it may cost. By default 0.0005."),
    ] = None,
    model: StoredModel = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it takes, and do nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Give back what forgotten blocks left on the disk. With --codec, code every block anew.

    A model is loaded only for the first --codec transform, which is fitted to it. Each block is coded anew as a whole
    or not at all. After an interruption the same command goes on where it stopped.
    """
    from everlong.memory import Memory

    require_exists(memory, folder=True)
    tables = _tables(memory, model, quality, quiet=as_json) if codec == "transform" and not dry_run else None
    with Memory.open(memory, read_only=dry_run) as kept:
        if tables is not None:
            kept.core.upkeep.put_transform(tables)
        work = kept.recoding(codec) if codec else None
        freed = 0
        if work is not None and not as_json:
            print_escaped(
                f"{memory}: {len(work.blocks):,} blocks are to be coded as {codec}: "
                f"{work.old_bytes / 1e6:,.1f} MB become {work.new_bytes / 1e6:,.1f} MB, and "
                f"{work.room_bytes / 1e6:,.1f} MB must be free meanwhile"
            )
        if not dry_run:
            with show_working(f"{memory}, compacting", enabled=not as_json):
                freed = kept.compact(codec or None)
    if as_json:
        print_json({"freed_bytes": freed, "recoding": None if work is None else dataclasses.asdict(work)})
    elif not dry_run:
        print_escaped(f"{memory}: {freed / 1e6:,.1f} MB given back")


def _tables(memory: Path, model: str, quality: float | None, *, quiet: bool) -> bytes | None:
    """Return the tables of a transform for a memory; None where it has some and no quality is asked for."""
    from everlong.memory import Memory

    with Memory.open(memory, read_only=True) as kept:
        if quality is None and "transform" in kept.core.manifest().attributes:
            return None
    from everlong.codecs.transform import QUALITY, tables_for
    from everlong.models import load

    named = startup_status(model_for(memory, model), quiet=quiet)
    network, tokenizer = load(named)
    return tables_for(
        network, tokenizer, QUALITY if quality is None else quality, log=lambda text: _print_result(text, quiet)
    )


def _print_result(text: str, quiet: bool) -> None:
    if not quiet:
        print_escaped(text, stderr=True)
