"""`everlong bench`: what does a memory cost with this model on this machine?"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from everlong.cli.app import DEFAULT_MODEL, Json, Model, app, print_json, starting
from everlong.cli.options import Machine, grouped
from everlong.text.progress import working
from everlong.text.terminal import escaping_console, line_by_line

if TYPE_CHECKING:
    from rich.console import Console

    from everlong.bench import BenchReport


@app.command()
@grouped
def bench(
    *,
    model: Model = DEFAULT_MODEL,
    tokens: Annotated[int, typer.Option(help="Tokens of books to read, in rounds of whole chunks.")] = 4096,
    sizes: Annotated[
        str, typer.Option(help="Sizes of the memory to decode and ask at, in tokens: 10000,100000 or 10K,1M.")
    ] = "10000,100000",
    machine: Machine,
    as_json: Json = False,
) -> None:
    """Measure what a memory costs with this model on this machine, beside transformers alone.

    The memory lies in the system's folder for temporary files (TMPDIR) and is gone afterwards.

    By default it takes about a minute on two cores for a model of 135M parameters.
    """
    starting(model, quiet=as_json)
    from everlong.bench import run_bench
    from everlong.cli.settings import parse_lengths

    lengths = parse_lengths(sizes)  # a wrong value is reported before a model is loaded
    network, tokenizer = machine.load(model)
    with working("reading, asking and decoding", enabled=not as_json):
        report = run_bench(network, tokenizer, name=model, tokens=tokens, sizes=lengths)
    print_json(dataclasses.asdict(report)) if as_json else print_report(report, escaping_console())


def print_report(report: BenchReport, console: Console) -> None:
    made, say = report.made_with, line_by_line(console)
    say(f"{made['gpu'] or made['processor']}, {made['threads']} threads, torch {made['torch']}, {report.dtype}")
    read = report.reading
    table = Table(title=f"what a memory costs with {report.model}")
    table.add_column("")
    for heading in ("memory", "everlong", "transformers", "ratio"):
        table.add_column(heading, justify="right")

    def add_speed(what: str, held: str, ours: float, anchor: float, ratio: float) -> None:
        table.add_row(what, held, f"{ours:,.1f} tok/s", f"{anchor:,.1f} tok/s", f"{ratio:.2f}")

    speed = (read.everlong_tokens_per_second, read.anchor_tokens_per_second, read.ratio)
    add_speed(f"reading over {read.span_tokens:,}", "", *speed)
    for row in report.decoding:
        speed = (row.everlong_tokens_per_second, row.anchor_tokens_per_second, row.ratio)
        add_speed(f"decoding over {row.frame_tokens:,}", f"{row.memory_tokens:,}", *speed)
    for cost in report.asking:
        table.add_section()
        for what, ms in (
            (f"question of {report.question_tokens}: search", cost.search_ms),
            ("restore", cost.restore_ms),
            ("best passage read again", cost.again_ms),
            ("its own forward, of two", cost.question_ms),
        ):
            table.add_row(what, f"{cost.tokens:,}", f"{ms:,.1f} ms")
    table.add_section()
    table.add_row("frame on the device", "", f"{report.frame_bytes / 1e6:,.1f} MB")
    table.add_row("a token on disk", "", f"{report.disk_token_bytes:,.0f} bytes")
    console.print(table)
