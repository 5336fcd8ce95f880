"""`everlong doctor`: can this model be served, and how exactly?"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from everlong.cli.app import DEFAULT_MODEL, Json, app, print_json, starting
from everlong.cli.options import Machine, grouped
from everlong.text.progress import working
from everlong.text.terminal import escaping_console

if TYPE_CHECKING:
    from rich.console import Console

    from everlong.doctor import Difference, DoctorReport


@app.command()
@grouped
def doctor(
    *,
    model: Annotated[
        str, typer.Argument(help="Model to examine, by name or path; smollm2 is embedded.")
    ] = DEFAULT_MODEL,
    machine: Machine,
    tokens: Annotated[int, typer.Option(help="Tokens of text to compute both ways.")] = 512,
    as_json: Json = False,
) -> None:
    """Compare a model with itself behind a memory: what is exact, what is approximate and by how much.

    The exit code is 1 when the model is refused, or when something that must be exact is not.
    """
    starting(model, quiet=as_json)
    from everlong.doctor import examine

    network, tokenizer = machine.load(model)
    with working(f"{tokens} tokens, computed in every way", enabled=not as_json):
        report = examine(network, tokenizer, name=model, tokens=tokens)
    print_json(dataclasses.asdict(report)) if as_json else print_report(report, escaping_console())
    if not report.healthy:
        raise typer.Exit(1)


def print_report(report: DoctorReport, console: Console) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in report.layers.items())
    console.print(
        f"{report.model}: {kinds}; {report.archived_layers} archived; {report.query_heads} query and "
        f"{report.kv_heads} KV heads of {report.head_dim}; RoPE {report.rope}; window {report.window:,}; "
        f"{report.dtype}; a frame of {report.frame_tokens:,} tokens takes {report.frame_bytes / 2**20:,.0f} MiB"
    )
    table = Table(title=f"the last of {report.tokens} tokens of a book, against plain transformers")
    table.add_column("part")
    for heading in ("max logit diff", "KL, nats", "same token", "verdict"):
        table.add_column(heading, justify="right")
    table.add_row("transformers, chunked", *_numbers(report.rounding), "its rounding")
    table.add_section()
    for check in report.checks:
        table.add_row(check.name, *_numbers(check.difference), check.verdict)
    console.print(table)
    wrong = [check.name for check in report.checks if check.verdict == "wrong"]
    if wrong:
        console.print(f"wrong: {'; '.join(wrong)}. Do not use everlong with this model.")
        return
    lossy = [check.name for check in report.checks if check.verdict == "approximate"]
    console.print(f"Served exactly, to the model's own rounding; by their nature approximate: {', '.join(lossy)}.")


def _numbers(difference: Difference) -> tuple[str, str, str]:
    return f"{difference.logit:.2g}", f"{difference.kl:.2g}", f"{difference.agreement:.0%}"
