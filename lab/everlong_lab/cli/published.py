"""`everlong eval published`: questions of published benchmarks, from the files of their authors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from everlong.cli.app import Json, print_json, startup_status
from everlong.cli.interrupts import interruption_message
from everlong.cli.options import grouped
from everlong.text.terminal import escaping_console, line_by_line
from everlong_lab.cli.evidence import eval_app
from everlong_lab.cli.options import Evaluated


@eval_app.command("published")
@grouped
def eval_published(
    *,
    on: Evaluated,
    data: Annotated[
        Path,
        typer.Option(
            help="A JSON or JSONL file, or a folder of them, of LongBench v2, BABILong, InfiniteBench, RULER, NoLiMa, "
            "LongMemEval, BEAM, HotpotQA or MuSiQue. For the last two, NAME_corpus.json beside NAME.json is read whole."
        ),
    ],
    limit: Annotated[int, typer.Option(help="Questions of each task, the first ones; 0: all.")] = 0,
    length: Annotated[
        str, typer.Option(help="Tokens of a haystack, where they are files of their own: NoLiMa.")
    ] = "32K",
    out: Annotated[Path | None, typer.Option(help="Folder for answers and report; a run goes on there.")] = None,
    as_json: Json = False,
) -> None:
    """Ask the questions of a published benchmark, from files that you have: with what comes back, and without."""
    if not data.exists():
        raise ValueError(f"--data: there is no {data}")
    startup_status(on.model, quiet=as_json)
    from everlong.cli.settings import parse_lengths
    from everlong_lab.eval.published.run import FILE, print_published, run_published

    folder = out if out is not None else Path("runs/published") / data.stem
    interruption_message(lambda: f"What was answered is kept in {folder}")
    network, memory_config = on.load_as_begun(folder, FILE)
    report = run_published(
        network,
        data,
        out=folder,
        limit=limit,
        length=parse_lengths(length)[0],
        memory_config=memory_config,
        log=line_by_line(escaping_console(stderr=True)),
    )
    (folder / "report.json").write_text(json.dumps(report) + "\n", encoding="utf-8")
    print_json(report) if as_json else print_published(report, escaping_console())
