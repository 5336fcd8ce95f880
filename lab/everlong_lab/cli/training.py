"""`everlong train ...`: train the learned parts for a model, part by part or all of them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everlong.cli.app import DEFAULT_MODEL, Application, Json, Model, app, print_json, startup_status
from everlong.cli.interrupts import interruption_message
from everlong.cli.options import Machine, grouped
from everlong.text.terminal import escaping_console
from everlong_lab import part_list
from everlong_lab.cli.parts import Out, ReportTo, TrainedParts, Work, echo_metrics, print_figures

if TYPE_CHECKING:
    from everlong_lab.training.whole_pack import ToTrain

train_app = Application(
    cls=TrainedParts, no_args_is_help=True, help="Train a pack: the learned parts of a memory for a model."
)
app.add_typer(train_app, name="train")


@train_app.callback()
def train() -> None:
    """Train parts by name, or all of them. Other parts that were trained for the model stay in its pack."""


@train_app.command("all")
@grouped
def train_all(
    *,
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        list[Path] | None, typer.Option(help="Books, author--title.txt; by default the shipped ones.")
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help='Pairs of your own, beside the shipped sets: lines of JSON, {"question": "", "passage": ""}.'
        ),
    ] = None,
    parts: Annotated[str, typer.Option(help="Parts to train, by commas; by default those that help most.")] = "",
    minutes: Annotated[
        float | None, typer.Option(help="No part begins after this time; each trains for its share of what is left.")
    ] = None,
    teacher: Annotated[
        str, typer.Option(help="Sentence encoder whose similarities are learned too: minilm, a name, or none.")
    ] = "minilm",
    seed: Annotated[int, typer.Option(help="Seed; the same seed on the same machine gives the same bits.")] = 0,
    work: Work = Path("runs/pack"),
    out: Out = None,
    report_to: ReportTo = "",
    machine: Machine,
    as_json: Json = False,
) -> None:
    """Train one part after the other. A run that was cut short goes on, and does not train a finished part again."""
    startup_status(model, quiet=as_json)
    interruption_message(lambda: f"What was trained so far is kept in {work}")
    from everlong.models.fingerprint import weights_fingerprint
    from everlong.models.pack import load_pack, pack_folder_of, pack_for
    from everlong_lab.training.trackers import require_tracker
    from everlong_lab.training.whole_pack import train_parts

    if report_to:
        require_tracker(report_to)

    console = escaping_console(stderr=True)
    options = {"text": tuple(text or ()), "data": tuple(data or ()), "teacher": teacher, "seed": seed}
    there, by_default = parts_to_train(options, report_to)
    network, tokenizer = machine.load(model)
    before = pack_for(network)
    folder = out or pack_folder_of(weights_fingerprint(network))
    trained = train_parts(
        network,
        tokenizer,
        there,
        [part for part in parts.split(",") if part] or by_default,
        work=work,
        out=folder,
        before=before,
        minutes=minutes,
        progress=echo_metrics(console),
        say=lambda line: console.print(line, highlight=False),
    )
    made = {part: dict(load_pack(folder).parts[part].made) for part in trained}
    if as_json:
        print_json({"folder": str(folder), "parts": made})
        return
    for part, figures in made.items():
        print_figures(console, f"{part}, trained in {figures['minutes']} minutes", figures)
    console.print(f"the pack: {folder}", highlight=False, soft_wrap=True)


def parts_to_train(options: dict[str, Any], report_to: str) -> tuple[list[ToTrain], list[str]]:
    """Return the parts that can be trained for a model, with their part of `options`; and those of a default pack."""
    from everlong_lab.training.whole_pack import ToTrain

    there, by_default = [], []
    for name in part_list.names():
        if part_list.file_of(name, "train") is None:
            continue
        try:
            module = part_list.module(name, "train")
        except ImportError as error:
            warnings.warn(f"the part {name} is not trained: {error}", stacklevel=2)
            continue
        if getattr(module, "OF_A_MEMORY", False) or hasattr(module, "own_model"):
            continue
        own = {field.name for field in dataclasses.fields(module.Training)}
        training = module.Training(**{what: value for what, value in options.items() if what in own})
        there.append(ToTrain(name.replace("_", "-"), training, _reported(module.train, name, report_to)))
        by_default += [there[-1].name] if getattr(module, "BY_DEFAULT", False) else []
    return there, by_default


def _reported(train: Callable[..., Any], part: str, report_to: str) -> Callable[..., Any]:
    """Return a part's training, which tells a tracker of its checks, where one is named."""

    def reported(run: Any, training: Any) -> Any:
        from everlong_lab.training.trackers import reporting

        with reporting(report_to, part, run.work, training, run.check) as check:
            return train(dataclasses.replace(run, check=check), training)

    return reported
