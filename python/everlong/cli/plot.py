"""`everlong plot`: pictures of what other commands print as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from everlong.cli.app import app
from everlong.text.terminal import print_escaped


@app.command("plot")
def plot_report(
    file: Annotated[Path, typer.Argument(help="JSON of an evaluation, of a trace, or of a demo.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the pictures; by default beside the file.")] = None,
) -> None:
    """Draw what a report says as PNG and SVG, from its JSON alone."""
    from everlong.pictures import draw_report, require_matplotlib

    require_matplotlib()
    report = json.loads(file.read_text(encoding="utf-8"))
    for picture in draw_report(report, out if out is not None else file.parent):
        print_escaped(picture)
