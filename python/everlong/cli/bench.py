"""`everlong bench`: what does a memory cost with this model on this machine?"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from everlong.cli.app import DEFAULT_MODEL, Json, Model, app, print_json, startup_status
from everlong.cli.options import Machine, grouped
from everlong.text.progress import show_working
from everlong.text.terminal import escaping_console, line_by_line

if TYPE_CHECKING:
    from rich.console import Console

    from everlong.bench import BenchReport, ColdReport
    from everlong.bench.archive_size import SizeReport


@app.command()
@grouped
def bench(
    *,
    model: Model = DEFAULT_MODEL,
    tokens: Annotated[int, typer.Option(help="Tokens of books to read, in rounds of whole chunks.")] = 4096,
    sizes: Annotated[
        str, typer.Option(help="Sizes of the memory to decode and ask at, in tokens: 10000,100000 or 10K,1M.")
    ] = "10000,100000",
    codecs: Annotated[
        bool,
        typer.Option("--codecs", help="Instead, tell how large a memory is in each codec, from the config alone."),
    ] = False,
    cold: Annotated[
        bool,
        typer.Option("--cold", help="Instead, time first tokens at each size while nothing of the memory is in RAM."),
    ] = False,
    like: Annotated[
        str, typer.Option(help="For --codecs: a model whose measured keys and values the made-up ones are like.")
    ] = DEFAULT_MODEL,
    machine: Machine,
    as_json: Json = False,
) -> None:
    """Measure what a memory costs with this model on this machine, beside transformers alone.

    With --cold it measures an answer's first token instead, while the memory is on disk alone. It shows when each layer
    of the pages that came back was there. With --codecs no weights of the model are needed: a folder with its
    config.json does.

    The memory lies in the system's folder for temporary files (TMPDIR) and is gone afterwards.

    By default it takes about a minute on two cores for a model of 135M parameters.
    """
    if codecs:
        print_sizes(model, like, machine, as_json=as_json)
        return
    startup_status(model, quiet=as_json)
    from everlong.bench import run_bench, run_cold
    from everlong.cli.settings import parse_lengths

    lengths = parse_lengths(sizes)  # a wrong value is reported before a model is loaded
    network, tokenizer = machine.load(model)
    if cold:
        with show_working("asking while the memory is on disk alone", enabled=not as_json):
            found = run_cold(network, tokenizer, name=model, sizes=lengths)
        print_json(dataclasses.asdict(found)) if as_json else show_cold(found, escaping_console())
        return
    with show_working("reading, asking and decoding", enabled=not as_json):
        report = run_bench(network, tokenizer, name=model, tokens=tokens, sizes=lengths)
    print_json(dataclasses.asdict(report)) if as_json else print_report(report, escaping_console())


def print_sizes(model: str, like: str, machine: Machine, *, as_json: bool) -> None:
    from everlong.bench.archive_size import measure
    from everlong.config import FrameConfig
    from everlong.models.geometry import geometry_of

    geometry = geometry_of(model, FrameConfig().tokens)
    startup_status(like, quiet=as_json)
    measured = machine.load(like, "float32")
    with show_working(f"keys and values like those of {like}, coded", enabled=not as_json):
        report = measure(geometry, measured, name=model, like_name=like)
    print_json(dataclasses.asdict(report)) if as_json else show_sizes(report, escaping_console())


def show_sizes(report: SizeReport, console: Console) -> None:
    shape, say = report.geometry, line_by_line(console)
    say(f"{report.model}: {shape.layers} archived layers, {shape.kv_heads} KV heads of {shape.head_dim}")
    table = Table(title=f"a memory of {report.model}")
    table.add_column("codec")
    for heading in ("bytes a token", "GB a million tokens", "tables, MB", f"KL of {report.like}"):
        table.add_column(heading, justify="right")
    for size in report.codecs:
        tables = f"{size.tables_bytes / 1e6:,.0f}" if size.tables_bytes else ""
        kl = "" if size.kl_of_like is None else f"{size.kl_of_like:.5f}"
        table.add_row(size.codec, f"{size.bytes:,.0f}", f"{size.bytes / 1e3:,.1f}", tables, kl)
    console.print(table)
    say(
        f"A transform's bytes are an estimate: those of {report.made_up_tokens} made-up tokens that are spread as "
        f"{report.like}'s. The other rows follow from the shape."
    )


def show_cold(report: ColdReport, console: Console) -> None:
    made, say = report.made_with, line_by_line(console)
    say(f"{made['gpu'] or made['processor']}, {made['threads']} threads, torch {made['torch']}, {report.dtype}")
    for cold in report.asking:
        table = Table(title=f"first token, {cold.tokens:,} tokens on disk, {cold.bytes / 1e6:.1f} MB come back")
        table.add_column("milliseconds")
        for way in ("layer by layer", "all layers first", "layer by layer, warm"):
            table.add_column(way, justify="right")
        for field in dataclasses.fields(cold.by_layer):
            ways = (cold.by_layer, cold.at_once, cold.warm)
            table.add_row(field.name, *(f"{getattr(of, field.name):,.1f}" for of in ways))
        console.print(table)
    trace = Table(title="the last question's pages, ms since its recall")
    for name in ("layers", "MB", "asked", "needed", "read", "decoded"):
        trace.add_column(name, justify="right")
    for part in report.asking[-1].arrived:
        times = (f"{1e3 * at:,.1f}" for at in (part.started, part.needed, part.read, part.written))
        trace.add_row(f"{part.first_layer} to {part.last_layer}", f"{part.bytes / 1e6:.1f}", *times)
    console.print(trace)


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
