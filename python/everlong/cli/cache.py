"""`everlong cache`: tokenizers and weights made of GGUF files, which are kept for the next load."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import typer
from rich.table import Table

from everlong.cli.app import Json, app, print_json
from everlong.models.conversion_cache import Entry, clear, entries, limit_bytes, models_folder
from everlong.text.terminal import escape_controls, escaping_console, print_escaped

cache_app = typer.Typer(no_args_is_help=True, help="What was made of GGUF files and is kept: list it, or clear it.")
app.add_typer(cache_app, name="cache")


@cache_app.command("list")
def list_entries(as_json: Json = False) -> None:
    """List the tokenizers and weights that were made of GGUF files, the one used last first."""
    kept, limit = entries(), limit_bytes()
    if as_json:
        print_json({"folder": str(models_folder()), "limit_bytes": limit, "models": _rows(kept)})
        return
    table = Table(
        "file", "kept", "size", "last used", title=f"made of GGUF files in {escape_controls(models_folder())}"
    )
    for row in _rows(kept):
        table.add_row(
            escape_controls(PurePath(row["source"]).name or "?"), row["dtype"], _gigabytes(row["bytes"]), row["used"]
        )
    escaping_console().print(table)
    taken = sum(entry.bytes for entry in kept)
    print_escaped(f"{len(kept)} of {_gigabytes(taken)}; the limit is {_gigabytes(limit)} (EVERLONG_CACHE_GB)")


@cache_app.command("clear")
def clear_entries(as_json: Json = False) -> None:
    """Remove all that was made of GGUF files, but what is being loaded. Profiles and packs stay."""
    there, removed = len(entries()), clear()
    freed = sum(entry.bytes for entry in removed)
    if as_json:
        print_json({"removed": _rows(removed), "bytes": freed, "in_use": there - len(removed)})
        return
    in_use = f"; {there - len(removed)} are in use" if there > len(removed) else ""
    print_escaped(f"removed {len(removed)} entries, {_gigabytes(freed)}{in_use}")


def _rows(listed: Sequence[Entry]) -> list[dict[str, Any]]:
    return [
        {
            "name": entry.name,
            "source": entry.source,
            "dtype": entry.kind.partition("-")[0],
            "bytes": entry.bytes,
            "used": _format_time(entry.used) if entry.used else "incomplete",
        }
        for entry in listed
    ]


def _format_time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).isoformat(" ", "minutes")


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"
