"""The command line: `everlong demo | read | ask | eval niah | eval ppl`. Exit code 0, or 1 with one line saying why."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from everlong.errors import EverlongError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
eval_app = typer.Typer(no_args_is_help=True, help="Measure a memory: needle in a haystack, perplexity.")
app.add_typer(eval_app, name="eval")

DEFAULT_MODEL = "smollm2"

Model = Annotated[str, typer.Option("--model", "-m", help="Name or path; smollm2 is the embedded default.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
MemoryFolder = Annotated[Path, typer.Option("--memory", "-d", help="Folder of the memory.")]


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))


@app.command()
def read(
    files: Annotated[list[Path], typer.Argument(help="Text files, UTF-8.", exists=True, dir_okay=False)],
    memory: MemoryFolder,
    model: Model = DEFAULT_MODEL,
    source: Annotated[str, typer.Option(help="Name in citations; the file's name by default.")] = "",
    as_json: Json = False,
) -> None:
    """Read text files into a memory, which is made if it is not there."""
    from everlong.model import MemoryModel

    with MemoryModel.from_pretrained(model, memory=memory) as mm:
        reports = {}
        for file in files:
            report = mm.read(file, source=source, progress=not as_json and sys.stderr.isatty())
            reports[str(file)] = dataclasses.asdict(report)
            if not as_json:
                rate = report.tokens / report.seconds if report.seconds > 0 else 0.0
                print(f"{file}: {report.tokens:,} tokens, {report.blocks} blocks, {rate:,.0f} tokens/s")
    if as_json:
        _print_json(reports)


@app.command()
def ask(
    question: str,
    memory: MemoryFolder,
    model: Annotated[str, typer.Option("--model", "-m", help="The model that read it, by default.")] = "",
    max_new_tokens: int = 64,
    remember: Annotated[bool, typer.Option(help="Keep question and answer in the memory.")] = False,
    as_json: Json = False,
) -> None:
    """Answer a question from a memory; the citations follow the answer."""
    from everlong.memory import Memory
    from everlong.model import MemoryModel

    if not model:
        with Memory.open(memory, read_only=True) as kept:
            model = kept.core.manifest().attributes.get("model", "") or DEFAULT_MODEL
    with MemoryModel.from_pretrained(model, memory=memory) as mm:
        answer = mm.generate(question, max_new_tokens=max_new_tokens, remember=remember)
    if as_json:
        _print_json(dataclasses.asdict(answer))
        return
    print(answer.text.strip())
    for recall in answer.recalled:
        line = " ".join(recall.text.split())
        name = recall.source or "conversation"
        print(f"\n[{name}, tokens {recall.span[0]:,}-{recall.span[1]:,}, block {recall.block_id}] {line[:200]}")


@app.command()
def demo(
    tokens: Annotated[int, typer.Option(help="Tokens of books to read.")] = 250_000,
    minutes: Annotated[float, typer.Option(help="Cut the haystack to what these minutes allow.")] = 8.0,
    out: Annotated[Path, typer.Option(help="Folder for memory, report and picture.")] = Path("runs/demo"),
    corpus: Annotated[Path | None, typer.Option(help="More books: a folder of .txt or a tar.xz of them.")] = None,
) -> None:
    """A real model reads books that it cannot hold, and answers from them."""
    from everlong.demo import run_demo

    run_demo(tokens=tokens, minutes=minutes, out=out, corpus=corpus)


@eval_app.command("niah")
def eval_niah(
    model: Model = DEFAULT_MODEL,
    tokens: Annotated[int, typer.Option(help="Longest haystack.")] = 32_768,
    facts: Annotated[int, typer.Option(help="Facts of each kind.")] = 10,
    seed: int = 0,
    corpus: Annotated[Path | None, typer.Option(help="Books: a folder of .txt or a tar.xz of them.")] = None,
    as_json: Json = False,
) -> None:
    """Needle in a haystack: facts planted in books, asked with memory, by the window alone, on the gold text."""
    from everlong.eval.niah import NiahConfig, print_niah, run_niah

    report = run_niah(model, NiahConfig(tokens=tokens, facts_per_kind=facts, seed=seed), corpus=corpus)
    _print_json(report.to_dict()) if as_json else print_niah(report, Console())


@eval_app.command("ppl")
def eval_ppl(
    model: Model = DEFAULT_MODEL,
    places: Annotated[int, typer.Option(help="Places in books that are scored.")] = 8,
    corpus: Annotated[Path | None, typer.Option(help="Books: a folder of .txt or a tar.xz of them.")] = None,
    seed: int = 0,
    as_json: Json = False,
) -> None:
    """Perplexity of what follows: window alone, recalled blocks, random pages, full attention."""
    from everlong.eval.ppl import PplConfig, print_ppl, run_ppl

    report = run_ppl(model, PplConfig(places=places, seed=seed), corpus=corpus)
    _print_json(report.to_dict()) if as_json else print_ppl(report, Console())


def main() -> None:
    """Entry point: expected failures become one line on standard error."""
    try:
        app()
    except (EverlongError, ValueError, OSError) as error:
        print(f"everlong: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
