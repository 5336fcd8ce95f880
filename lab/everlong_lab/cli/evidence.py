"""`everlong demo`, `everlong eval ...`: whether everlong works, and how well."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from everlong.cli.app import (
    DEFAULT_MODEL,
    Application,
    ChatTemplateKwargs,
    Json,
    app,
    on_device,
    parse_chat_template_kwargs,
    print_json,
    startup_status,
)
from everlong.cli.interrupts import interruption_message
from everlong.cli.options import Machine, grouped
from everlong.text.terminal import escaping_console, line_by_line
from everlong_lab.cli.options import Corpus, Evaluated
from everlong_lab.cli.parts import MeasuredParts


class _Suites(MeasuredParts):
    """A group with a command for every suite and task, which it lists when it is asked for an unknown one.

    These commands are made when they are needed.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        from everlong_lab.corpora.tasks import SUITES

        own = TyperGroup.list_commands(self, ctx)
        return [*own, *SUITES, *(name for name in super().list_commands(ctx) if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            return command
        from everlong_lab.corpora.tasks import SUITES, TASKS

        if cmd_name not in SUITES and cmd_name not in TASKS:
            suites = ", ".join(self.list_commands(ctx))
            raise ValueError(f"no suite or task {cmd_name!r}; suites: {suites}; tasks: {', '.join(TASKS)}")
        return _suite_command(cmd_name)


@functools.cache
def _suite_command(name: str) -> Any:
    from everlong_lab.corpora.tasks import SUITES, TASKS

    tasks = ", ".join(task.name for task in SUITES.get(name, ()))
    only = typer.Typer(add_completion=False)
    says = f"The tasks {tasks}." if tasks else TASKS[name].__doc__
    only.command(name, help=says, hidden=name in TASKS)(grouped(run_and_report, name))
    return typer.main.get_command(only)


eval_app = Application(
    cls=_Suites, no_args_is_help=True, help="Measure a memory: suites of tasks against baselines, perplexity, parts."
)
app.add_typer(eval_app, name="eval")


@app.command()
@grouped
def demo(
    *,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of books to read; by default 250,000, cut to what --minutes allow.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Cut tokens and facts to what these minutes allow; 6 unless --tokens is given.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for memory, report and picture.")] = Path("runs/demo"),
    corpus: Corpus = None,
    machine: Machine,
    as_json: Json = False,
) -> None:
    """Let a real model read books that it cannot hold, and answer from them."""
    startup_status(DEFAULT_MODEL, quiet=as_json)
    from everlong_lab.eval.demo import run_demo

    report = run_demo(
        tokens=tokens,
        minutes=minutes,
        out=out,
        corpus=corpus,
        console=escaping_console(quiet=as_json),
        dtype=machine.dtype or None,
        **on_device(machine.device),
    )
    if as_json:
        print_json(report.to_dict())


@eval_app.command("niah")
@grouped
def eval_niah(
    *,
    on: Evaluated,
    tokens: Annotated[int | None, typer.Option(help="Tokens in the longest haystack; by default 32,768.")] = None,
    lengths: Annotated[
        str, typer.Option(help="Lengths to ask at, ascending, such as 32K,128K; replaces --tokens.")
    ] = "",
    facts: Annotated[int, typer.Option(help="Number of facts of each kind at each length.")] = 10,
    kinds: Annotated[
        str,
        typer.Option(
            help="Kinds of facts, by commas: pass-key,uuid,name (the default),best-thing,quote; or paraphrase: 48 "
            "facts that are asked for in other words."
        ),
    ] = "",
    keep: Annotated[
        Path | None, typer.Option(help="Folder to keep the memory of every length in, to ask it again without reading.")
    ] = None,
    chat_template_kwargs: ChatTemplateKwargs = "",
    as_json: Json = False,
) -> None:
    """Find needles in a haystack: facts planted in books, asked with memory, window alone and gold text alone."""
    startup_status(on.model, quiet=as_json)
    from everlong.cli.settings import parse_lengths
    from everlong_lab.eval.niah import READ_AS, NiahConfig, run_niah
    from everlong_lab.eval.tables import print_report

    stops = parse_lengths(lengths) if lengths else ()
    if stops and tokens not in (None, stops[-1]):
        raise ValueError(f"--tokens {tokens} is not the longest of --lengths {lengths}")
    config = NiahConfig(
        lengths=stops,
        facts_per_kind=facts,
        seed=on.seed,
        tokens=stops[-1] if stops else tokens or 32_768,
        chat_template_kwargs=parse_chat_template_kwargs(chat_template_kwargs),
    )
    if kinds:
        config = dataclasses.replace(config, kinds=tuple(kinds.split(",")))  # type: ignore[arg-type]  # checked there
    if keep is not None:
        interruption_message(lambda: f"What was read and answered is kept in {keep}")
    errors = escaping_console(stderr=True)
    network, memory_config = on.load_as_begun(keep, READ_AS)
    report = run_niah(
        network,
        config,
        memory_config=memory_config,
        corpus=on.corpus,
        keep=keep,
        log=line_by_line(errors),
        progress=True,
    )
    print_json(report.to_dict()) if as_json else print_report(report, escaping_console())


@eval_app.command("ppl")
@grouped
def eval_ppl(
    *,
    on: Evaluated,
    places: Annotated[int, typer.Option(help="Number of places in books to score.")] = 8,
    kept: Annotated[
        int, typer.Option(help='Slots of a zone "kept", measured with every way to choose its tokens; 0: none.')
    ] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the results so far; a run goes on there.")] = None,
    as_json: Json = False,
) -> None:
    """Measure the perplexity of what follows: window alone, recalled blocks, random pages, full attention."""
    startup_status(on.model, quiet=as_json)
    from everlong_lab.eval.ppl import FILE, PplConfig, run_ppl, trimmers_for
    from everlong_lab.eval.tables import print_report

    if out is not None:
        interruption_message(lambda: f"The results so far are kept in {out}")
    network, memory_config = on.load_as_begun(out, FILE)
    report = run_ppl(
        network,
        PplConfig(places=places, kept_tokens=kept, kept_by=trimmers_for(network[0]) if kept else (), seed=on.seed),
        corpus=on.corpus,
        memory_config=memory_config,
        out=out,
        log=line_by_line(escaping_console(stderr=True)),
    )
    print_json(report.to_dict()) if as_json else print_report(report, escaping_console())


def run_and_report(
    suite: str,
    *,
    on: Evaluated,
    baselines: Annotated[
        list[str] | None,
        typer.Option(
            "--baseline", help="Baseline to compare with: NAME or NAME:setting=value. May be given several times."
        ),
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="Lengths of the text in tokens, such as 4K,32K,1M; one reading serves all.")
    ] = "",
    count: Annotated[int, typer.Option(help="Questions of each task at each length; 0: 4, or 1 with --quick.")] = 0,
    quick: Annotated[bool, typer.Option(help="Take a first look, in minutes.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for memory, answers and report; a run goes on there.")
    ] = None,
    plot: Annotated[bool, typer.Option(help="Draw the report's pictures into the folder.")] = False,
    chat_template_kwargs: ChatTemplateKwargs = "",
    as_json: Json = False,
) -> None:
    """Run a suite, keep its report as `report.json` and its tables as `report.md` in its folder, and show it."""
    startup_status(on.model, quiet=as_json)
    from everlong.cli.settings import parse_lengths
    from everlong.pictures import require_matplotlib
    from everlong_lab.eval.baselines import baseline_of
    from everlong_lab.eval.report import markdown, print_suite
    from everlong_lab.eval.suite import DEFAULT_BASELINES, FILE, QUICK_BASELINES, SuiteConfig, run_suite

    config = SuiteConfig.quick(suite) if quick else SuiteConfig(suites=(suite,))
    variables = parse_chat_template_kwargs(chat_template_kwargs)
    config = dataclasses.replace(config, seed=on.seed, chat_template_kwargs=variables)
    if lengths:
        config = dataclasses.replace(config, lengths=parse_lengths(lengths))
    if count:
        config = dataclasses.replace(config, count=count)
    chosen = tuple(baselines or ()) or (QUICK_BASELINES if quick else DEFAULT_BASELINES)
    for spec in chosen:
        baseline_of(spec)
    if plot:
        require_matplotlib()
    folder = out if out is not None else Path("runs/eval") / (f"{suite}-quick" if quick else suite)
    interruption_message(lambda: f"What was read and answered is kept in {folder}")
    console = escaping_console(stderr=as_json)
    log = line_by_line(console)
    network, memory_config = on.load_as_begun(folder, FILE)
    report = run_suite(
        network,
        config,
        chosen,
        out=folder,
        memory_config=memory_config,
        corpus=on.corpus,
        log=log,
        progress=True,
    )
    file = folder / "report.json"
    file.write_text(json.dumps(report) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(markdown(report), encoding="utf-8")
    if as_json:
        print_json(report)
    else:
        print_suite(report, console)
        log(f"report: {file}")
    if plot:
        from everlong.pictures import draw_report

        for picture in draw_report(report, folder):
            log(f"picture: {picture}")
