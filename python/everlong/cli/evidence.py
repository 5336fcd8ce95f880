"""`everlong demo`, `everlong eval ...`: seeing that it works, and how well."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from everlong.cli.app import DEFAULT_MODEL, Json, Model, app, print_json

eval_app = typer.Typer(no_args_is_help=True, help="Measure a memory: needle in a haystack, perplexity.")
app.add_typer(eval_app, name="eval")

Settings = Annotated[list[str] | None, typer.Option("--set", help="A setting of MemoryConfig: recall_mode=text.")]
Seed = Annotated[int, typer.Option(help="Of facts, places and orders: the same seed, the same questions.")]
Corpus = Annotated[Path | None, typer.Option(help="More books: a folder of .txt or a tar.xz of them.")]


@app.command()
def demo(
    tokens: Annotated[int, typer.Option(help="Tokens of books to read.")] = 250_000,
    minutes: Annotated[float, typer.Option(help="Cut the haystack to what these minutes allow.")] = 8.0,
    out: Annotated[Path, typer.Option(help="Folder for memory, report and picture.")] = Path("runs/demo"),
    corpus: Corpus = None,
    as_json: Json = False,
) -> None:
    """A real model reads books that it cannot hold, and answers from them."""
    from everlong.demo import run_demo

    report = run_demo(tokens=tokens, minutes=minutes, out=out, corpus=corpus, console=Console(quiet=as_json))
    if as_json:
        print_json(report.to_dict())


@eval_app.command("niah")
def eval_niah(
    model: Model = DEFAULT_MODEL,
    tokens: Annotated[int, typer.Option(help="Longest haystack.")] = 32_768,
    lengths: Annotated[str, typer.Option(help="Where to ask: 32768,131072; the last is --tokens.")] = "",
    facts: Annotated[int, typer.Option(help="Facts of each kind at each length.")] = 10,
    kinds: Annotated[
        str, typer.Option(help="Kinds of facts, by commas; all five: pass-key,uuid,name,best-thing,quote.")
    ] = "",
    seed: Seed = 0,
    corpus: Corpus = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the memory of every length here, to ask again at once.")
    ] = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Needle in a haystack: facts planted in books, asked with memory, by the window alone, on the gold text."""
    from everlong.config import MemoryConfig
    from everlong.eval.niah import NiahConfig, print_niah, run_niah

    stops = tuple(int(length) for length in lengths.split(",") if length)
    config = NiahConfig(tokens=stops[-1] if stops else tokens, lengths=stops, facts_per_kind=facts, seed=seed)
    if kinds:
        config = dataclasses.replace(config, kinds=tuple(kinds.split(",")))  # type: ignore[arg-type]  # checked there
    errors = Console(stderr=True)
    report = run_niah(
        model,
        config,
        memory_config=MemoryConfig().with_settings(settings) if settings else None,
        corpus=corpus,
        keep=keep,
        log=errors.print,
        progress=errors.is_terminal,
    )
    print_json(report.to_dict()) if as_json else print_niah(report, Console())


@eval_app.command("ppl")
def eval_ppl(
    model: Model = DEFAULT_MODEL,
    places: Annotated[int, typer.Option(help="Places in books that are scored.")] = 8,
    corpus: Corpus = None,
    seed: Seed = 0,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Perplexity of what follows: window alone, recalled blocks, random pages, full attention."""
    from everlong.config import MemoryConfig
    from everlong.eval.ppl import PplConfig, print_ppl, run_ppl

    report = run_ppl(
        model,
        PplConfig(places=places, seed=seed),
        corpus=corpus,
        memory_config=MemoryConfig().with_settings(settings) if settings else None,
        log=Console(stderr=True).print,
    )
    print_json(report.to_dict()) if as_json else print_ppl(report, Console())
