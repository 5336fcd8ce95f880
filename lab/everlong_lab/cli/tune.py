"""`everlong tune`: the settings that serve a model best."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from everlong.cli.app import DEFAULT_MODEL, Json, app, print_json, startup_status
from everlong.cli.interrupts import interruption_message
from everlong.cli.options import Machine, grouped
from everlong.text.terminal import escaping_console, line_by_line


@app.command()
@grouped
def tune(
    *,
    model: Annotated[
        str, typer.Argument(help="Model to tune for, by name or path; smollm2 is embedded.")
    ] = DEFAULT_MODEL,
    machine: Machine,
    out: Annotated[Path | None, typer.Option(help="Folder for memory and answers; a run goes on there.")] = None,
    as_json: Json = False,
) -> None:
    """Measure how many groups a question should bring back with a model, and how; keep it for the model.

    It takes minutes, and is done once for a model: memories that are opened without settings of their own use it.
    """
    startup_status(model, quiet=as_json)
    from everlong_lab.eval.answers import dtype_of
    from everlong_lab.eval.suite import FILE
    from everlong_lab.eval.tune import measure_settings, print_tuned

    folder = out if out is not None else Path("runs/tune") / Path(model).name
    interruption_message(lambda: f"What was answered is kept in {folder}")
    network, tokenizer = machine.load(model, dtype_of(folder, FILE))
    tuned = measure_settings(
        network, tokenizer, name=model, out=folder, log=line_by_line(escaping_console(stderr=True))
    )
    print_json(dataclasses.asdict(tuned)) if as_json else print_tuned(tuned, escaping_console())
