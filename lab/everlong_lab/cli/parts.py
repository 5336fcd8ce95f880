"""`everlong train PART` and `everlong eval PART`, made from the dataclasses of the installed parts.

The options are those of a part's `Training` or `Measuring`; the command's help is their docstring. A part is imported
when its command runs or is asked for its options, and no earlier.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from everlong.cli.app import DEFAULT_MODEL, Json, Model, print_json, startup_status
from everlong.cli.interrupts import interruption_message
from everlong.cli.options import Machine, ModelOptions, parameter, parameters_in, resolved
from everlong.errors import EverlongError
from everlong.text.terminal import escaping_console, line_by_line
from everlong_lab import part_list
from everlong_lab.cli.field_comments import docstring_in
from everlong_lab.cli.from_dataclass import command_of, parameters_of, settings_of

Out = Annotated[
    Path | None, typer.Option(help="Folder for the pack; by default the one where this model's pack is looked for.")
]
Work = Annotated[Path, typer.Option(help="Folder for states and checkpoints; a run that was cut short goes on there.")]
ReportTo = Annotated[
    str, typer.Option("--report-to", help="Tracker for the figures of each check: tensorboard, wandb or trackio.")
]
Pack = Annotated[str, typer.Option(help="Pack of the model's trained parts: auto, a folder, or none.")]

Which = Literal["train", "measure"]

# Former names, as they were typed, with what took their place.
RENAMED: Mapping[tuple[str, ...], str] = {
    ("train", "dnii"): "`everlong train router`",
    ("eval", "meaning"): "`everlong eval towers`",
    ("eval", "tombstones", "--writer"): "`--kv-writer`",
}
_COMMANDS: dict[Which, str] = {"train": "train", "measure": "eval"}
_SETTINGS: dict[Which, str] = {"train": "Training", "measure": "Measuring"}


class PartCommand(TyperCommand):
    """A part's command, which is made when it is needed. Until then only its name and its help are known."""

    def __init__(self, part: str, which: Which, says: str) -> None:
        super().__init__(part.replace("_", "-"), help=says)
        self._part, self._which = part, which

    @functools.cached_property
    def _made(self) -> Any:
        return _MAKERS[self._which](self._part, self.help or "")

    def get_params(self, ctx: Any) -> Any:
        return self._made.get_params(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if "--help" not in args:
            startup_status(
                f"the part {self.name}", quiet="--json" in args
            )  # its options stand in a module that needs torch
        for word in args:
            _refuse_renamed(self._which, str(self.name), word.partition("=")[0])
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        return self._made.invoke(ctx)


class Parts(TyperGroup):
    """A group with its own commands, and one for every part that can be trained or measured."""

    which: Which

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *self._parts()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        _refuse_renamed(self.which, cmd_name)
        part = self._parts().get(cmd_name)
        return super().get_command(ctx, cmd_name) if part is None else self._command_of(part)

    @functools.lru_cache  # noqa: B019  # a group lives as long as the process
    def _command_of(self, part: str) -> PartCommand:
        file = part_list.file_of(part, self.which)
        assert file is not None
        return PartCommand(part, self.which, docstring_in(file, _SETTINGS[self.which]))

    def _parts(self) -> dict[str, str]:
        """Return the parts by the names of their commands."""
        there = [name for name in part_list.names() if part_list.file_of(name, self.which) is not None]
        return {name.replace("_", "-"): name for name in there}


class TrainedParts(Parts):
    which = "train"


class MeasuredParts(Parts):
    which = "measure"


def _refuse_renamed(which: Which, *typed: str) -> None:
    renamed = RENAMED.get((_COMMANDS[which], *typed))
    if renamed is not None:
        raise EverlongError(f"`everlong {_COMMANDS[which]} {' '.join(typed)}` has another name now: {renamed}")


def echo_metrics(console: Console) -> Callable[[str, int, int], None]:
    """Return a log that prints every fiftieth step of a count, and the last one."""

    def report(what: str, done: int, of: int) -> None:
        if done == of or done % 50 == 0:
            console.print(f"{what}: {done:,} of {of:,}", highlight=False)

    return report


def validate(console: Console) -> Callable[[int, dict[str, float]], None]:
    def report(step: int, found: dict[str, float]) -> None:
        losses = ", ".join(f"{name} {loss:.3f}" for name, loss in found.items() if name not in ("step", "minutes"))
        console.print(f"step {step:,} ({found['minutes']:.1f} minutes): {losses}", highlight=False)

    return report


def print_figures(console: Console, head: str, made: Mapping[str, Any]) -> None:
    console.print(head, highlight=False, soft_wrap=True)
    for name, found in made["figures"].items():
        figures = ", ".join(f"{what} {figure:.3f}" for what, figure in found.items())
        console.print(f"  {name}: {figures}", highlight=False)


def _training_of(part: str, says: str) -> Any:
    """Make `everlong train PART`, which trains into the model's pack.

    What is trained for a memory, without a model, is kept with the memory. A part with an `own_model` is trained for
    that one, whichever model is served.
    """
    module = part_list.module(part, "train")
    of_memory, own_model = getattr(module, "OF_A_MEMORY", False), getattr(module, "own_model", None)
    served = [parameter("model", Model, DEFAULT_MODEL), parameter("pack", Pack, "auto"), *parameters_in(Machine)]
    common = [] if of_memory else [
        *(served if own_model is None else []),
        parameter("work", Work, Path("runs", part.replace("_", "-"))),
        parameter("out", Out, None),
        parameter("report_to", ReportTo, ""),
    ]  # fmt: skip

    def train(as_json: bool, **options: Any) -> None:
        from everlong.models.pack import pack_folder_of, pack_for, pack_of
        from everlong_lab.training.run import Run
        from everlong_lab.training.trackers import reporting, require_tracker

        console = escaping_console(stderr=True)
        training = settings_of(module.Training, options)
        if of_memory:
            made = module.train(Run(None, None, Path(), None, echo_metrics(console), validate(console)), training)
            _print_line(made, "the memory", console, as_json=as_json)
            return
        if options["report_to"]:
            require_tracker(options["report_to"])
        interruption_message(lambda: f"What was trained so far is kept in {options['work']}")
        network, tokenizer = (own_model(), None) if own_model else resolved(Machine, options).load(options["model"])
        found = None if own_model or options["pack"] == "none" else pack_for(network, options["pack"])
        with reporting(options["report_to"], part, options["work"], training, validate(console)) as check:
            run = Run(network, tokenizer, options["work"], found, echo_metrics(console), check)
            pack = pack_of(network, module.train(run, training))
        folder = options["out"] or pack_folder_of(pack.model)
        pack.save(folder)
        _print_line(pack.parts, str(folder), console, as_json=as_json)

    return command_of(train, [*parameters_of(module.Training), *common, parameter("as_json", Json, False)], says)


def _print_line(parts: Mapping[str, Any], where: str, console: Console, *, as_json: bool) -> None:
    """Show how the first of the parts was made; the others were made with it."""
    made = next(iter(parts.values())).made
    if as_json:
        print_json({"folder": where, **made})
    else:
        print_figures(console, f"trained on {made['data']} in {made['minutes']} minutes; kept in {where}", made)


def _measuring_of(part: str, says: str) -> Any:
    """Make `everlong eval PART`; it has options for a pack and for a memory's settings where the part takes them."""
    module = part_list.module(part, "measure")
    asks = inspect.signature(module.measure).parameters
    machine = ModelOptions if "config" in asks else Machine
    common = [parameter("model", Model, DEFAULT_MODEL), *parameters_in(machine)]
    if "pack" in asks:
        common.append(parameter("pack", Pack, "auto"))

    def measure(as_json: bool, **options: Any) -> None:
        from everlong_lab.eval.tables import print_report

        measuring = settings_of(module.Measuring, options)
        how: dict[str, Any] = {"log": line_by_line(escaping_console(stderr=True))}
        if "pack" in asks:
            how["pack"] = None if options["pack"] == "none" else options["pack"]
        where = resolved(machine, options)
        if isinstance(where, ModelOptions):
            loaded, how["config"] = where.load_configured(options["model"])
        else:
            loaded = where.load(options["model"])
        report = module.measure(loaded, measuring, **how)
        print_json(report.to_dict()) if as_json else print_report(report, escaping_console())

    return command_of(measure, [*parameters_of(module.Measuring), *common, parameter("as_json", Json, False)], says)


_MAKERS: dict[Which, Callable[[str, str], Any]] = {"train": _training_of, "measure": _measuring_of}
