"""`everlong sync`: a memory is kept in step with a folder."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everlong.cli.app import (
    Json,
    MemoryFolder,
    StoredModel,
    app,
    model_for,
    print_json,
    print_json_line,
    require_exists,
    startup_status,
)
from everlong.cli.interrupts import interruption_message
from everlong.cli.memory import attached
from everlong.cli.options import ModelOptions, grouped
from everlong.cli.unfinished import stored_in
from everlong.errors import MostFilesGoneError
from everlong.text.terminal import print_escaped

if TYPE_CHECKING:
    from everlong.generation.memory_model import MemoryModel
    from everlong.generation.sync import SyncReport

_LISTED = 20  # paths of a kind that are shown


@app.command()
@grouped
def sync(
    *,
    folder: Annotated[Path, typer.Argument(help="Folder whose files are read, with all below it.")],
    memory: MemoryFolder,
    model: StoredModel = "",
    include: Annotated[
        list[str] | None,
        typer.Option(help="Only files of this pattern, as in a .gitignore: '*.md'. May be given several times."),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="No files of this pattern. May be given several times.")
    ] = None,
    gitignore: Annotated[bool, typer.Option(help="Leave out what a .gitignore names.")] = True,
    tag: Annotated[
        list[str] | None, typer.Option(help="A tag for what is read now; may be given several times.")
    ] = None,
    forget_all: Annotated[
        bool,
        typer.Option(
            "--forget-all",
            help="Forget also where most files are gone, as of an empty folder. Without it, a terminal is asked.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, and sync after each change, until Ctrl-C.")] = False,
    loading: ModelOptions,
    as_json: Json = False,
) -> None:
    """Keep a memory in step with a folder: read new and changed files, forget those that are gone.

    A file that was moved is not read again. What --exclude, --include or a .gitignore leaves out counts as gone. Where
    most files are gone, as of a folder that is not mounted, nothing is forgotten unless you say so. After an
    interruption, the same command goes on where it stopped.
    """
    if not forget_all or folder.exists():
        require_exists(folder, folder=True)
    chosen: dict[str, Any] = {"include": include or (), "exclude": exclude or (), "gitignore": gitignore}
    if dry_run:
        _print_report(_planned(memory, folder, chosen, forget_all=forget_all), done=False, as_json=as_json)
        return
    named = startup_status(model_for(memory, model), quiet=as_json)
    interruption_message(lambda: stored_in(memory))
    with attached(loading, named, memory) as mm:
        told: dict[str, Any] = (
            {} if as_json else {"on_file": lambda path: print_escaped(f"reading {path}", stderr=True)}
        )
        how = {"tags": tag or (), **chosen, **told}
        report = _synced(mm, folder, how, forget_all=forget_all, ask=not as_json and sys.stdin.isatty())
        _print_report(report, done=True, as_json=as_json, one_line=watch)
        if watch:
            _watch(mm, folder, memory, how, as_json=as_json)


def _synced(mm: MemoryModel, folder: Path, how: dict[str, Any], *, forget_all: bool, ask: bool) -> SyncReport:
    """Sync. Where most files are gone, the user is asked, or MostFilesGoneError is raised."""
    try:
        return mm.sync(folder, forget_all=forget_all, **how)
    except MostFilesGoneError as error:
        if not ask:
            raise
        print_escaped(error, stderr=True)
        typer.confirm("Forget them?", abort=True, err=True)
        return mm.sync(folder, forget_all=True, **how)


def _planned(memory: Path, folder: Path, chosen: dict[str, Any], *, forget_all: bool) -> SyncReport:
    from everlong.files.folder import Choice
    from everlong.generation.sync import planned
    from everlong.memory import Memory

    choice = Choice(**chosen)
    if not Memory.exists(memory):
        return planned(None, folder, choice, forget_all=forget_all)
    with Memory.open(memory, read_only=True) as opened:
        return planned(opened, folder, choice, forget_all=forget_all)


def _watch(mm: MemoryModel, folder: Path, memory: Path, how: dict[str, Any], *, as_json: bool) -> None:
    """Sync after each change. What changes in the memory's own folder, which may lie below, is no change.

    While most files are gone, nothing is done: they may come back.
    """
    import watchfiles

    own = memory.resolve()

    def counts(change: watchfiles.Change, path: str) -> bool:
        return not Path(path).is_relative_to(own)

    if not as_json:
        print_escaped(f"watching {folder}; Ctrl-C ends it", stderr=True)
    for _ in watchfiles.watch(folder.resolve(), watch_filter=counts, raise_interrupt=True):
        try:
            report = mm.sync(folder, **how)
        except MostFilesGoneError as error:
            print_escaped(error, stderr=True)
            continue
        _print_report(report, done=True, as_json=as_json, one_line=True)


def _print_report(report: SyncReport, *, done: bool, as_json: bool, one_line: bool = False) -> None:
    if as_json:
        (print_json_line if one_line else print_json)(dataclasses.asdict(report))
        return
    moved = [f"{old} -> {new}" for old, new in report.moved]
    for what, paths in (("new", report.new), ("changed", report.changed), ("moved", moved), ("gone", report.gone)):
        for path in paths[:_LISTED]:
            print_escaped(f"{what}: {path}")
        if len(paths) > _LISTED:
            print_escaped(f"{what}: {len(paths) - _LISTED:,} more")
    for path, why in (*report.unreadable.items(), *report.passed_over.items()):
        print_escaped(f"passed over: {path} {why}", stderr=True)
    counts = (
        f"{len(report.new):,} new, {len(report.changed):,} changed, {len(moved):,} moved, {len(report.gone):,} gone"
    )
    read = f"; {report.tokens:,} tokens read, {report.forgotten:,} blocks forgotten" if done else ": nothing was done"
    print_escaped(f"{counts}, {report.kept:,} kept, {len(report.unreadable):,} passed over{read}")
    if report.most_gone and not done:
        print_escaped("most files are gone: without --forget-all, nothing would be done", stderr=True)
