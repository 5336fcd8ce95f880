"""`everlong doctor`: can this model be served, and how exactly?"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from everlong.cli.app import DEFAULT_MODEL, Json, app, print_json, startup_status
from everlong.cli.options import Machine, grouped
from everlong.text.progress import show_working
from everlong.text.terminal import escaping_console

if TYPE_CHECKING:
    from rich.console import Console

    from everlong.codecs.costs import CodecReport
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
    codec: Annotated[
        bool,
        typer.Option("--codec", help="Instead, measure what each codec of the archive costs, and fit the transform."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare a model with itself behind a memory: what is exact, what is approximate and by how much.

    The exit code is 1 when the model is refused, or when something that must be exact is not.
    """
    startup_status(model, quiet=as_json)
    if codec:
        measure_codecs(model, machine, as_json=as_json)
        return
    from everlong.doctor import examine

    network, tokenizer = machine.load(model)
    with show_working(f"{tokens} tokens, computed in every way", enabled=not as_json):
        report = examine(network, tokenizer, name=model, tokens=tokens)
    print_json(dataclasses.asdict(report)) if as_json else print_report(report, escaping_console())
    if not report.healthy:
        raise typer.Exit(1)


def measure_codecs(model: str, machine: Machine, *, as_json: bool) -> None:
    """Print what each codec costs a model, and which costs nothing. It computes in fp32 unless told otherwise."""
    from everlong.codecs.costs import measure

    network, tokenizer = machine.load(model, "float32")
    with show_working("contexts of books, coded in every way, for some minutes", enabled=not as_json):
        report = measure(network, tokenizer, name=model)
    print_json(dataclasses.asdict(report)) if as_json else print_costs(report, escaping_console())


def print_costs(report: CodecReport, console: Console) -> None:
    from everlong.codecs.transform import QUALITY

    best = report.cheapest
    table = Table(title=f"{report.model}: what follows a coded context, against the exact one")
    table.add_column("codec")
    for heading in ("bytes a token", "KL, nats", "nats lost", "same token"):
        table.add_column(heading, justify="right")
    for cost in report.codecs:
        numbers = f"{cost.bytes:,.0f}", f"{cost.kl:.5f}", f"{cost.nats_lost:+.4f}", f"{cost.same_token:.1%}"
        table.add_row(cost.codec, *numbers, style="bold" if cost is best else None)
    console.print(table)
    bound = f"a KL of at most {QUALITY:g} nats a token"
    if best is None:
        console.print(f"No codec keeps to {bound}.")
    elif best.codec.startswith("transform"):
        console.print(
            f"The smallest that costs nothing ({bound}) is the {best.codec}: "
            f"`everlong compact MEMORY --codec transform --quality {best.kl:.2g}`."
        )
    else:
        console.print(f"The smallest that costs nothing ({bound}) is {best.codec}: --set archive.codec={best.codec}.")


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
