"""Groups of options that commands share: a command takes a dataclass, and its fields become options."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from everlong.cli.app import Settings, on_device, set_config
from everlong.cli.settings import memory_settings

if TYPE_CHECKING:
    from everlong.config import MemoryConfig
    from everlong.memory.where import Role, Where

T = TypeVar("T")


def grouped(function: Callable[..., None], *first: Any) -> Callable[..., None]:
    """Return the function as typer takes it: the fields of a dataclass parameter become parameters.

    The values in `first` are given to its first parameters, which are no options.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())[len(first) :]
    groups: dict[str, Any] = {one.name: one.annotation for one in own if dataclasses.is_dataclass(one.annotation)}

    def call(**values: Any) -> None:
        made = {name: resolved(group, values) for name, group in groups.items()}
        function(*first, **values, **made)

    listed = [parameters_in(one.annotation) if one.name in groups else [one] for one in own]
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for some in listed for one in some]
    command = with_parameters(call, parameters)
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


def parameters_in(group: type) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    return [parameter(field.name, hints[field.name], field.default) for field in dataclasses.fields(group)]


def resolved(group: type[T], values: dict[str, Any]) -> T:
    """Return the group with its fields, which are taken out of `given`."""
    return group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})  # type: ignore[arg-type]


def parameter(name: str, annotated: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotated)


def with_parameters(function: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """Return a function that has these parameters for typer."""

    def command(**values: Any) -> None:
        function(**values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


@dataclasses.dataclass(frozen=True)
class Machine:
    """Where a model computes, and in which dtype."""

    dtype: Annotated[
        str,
        typer.Option(
            help="Number type: float32, bfloat16, float16 or auto; by default the faster one on a CPU, the model's own "
            "on a GPU."
        ),
    ] = ""
    device: Annotated[
        str, typer.Option(help="Device for the model: cuda:1, cpu; by default a GPU that it fits, or else the CPU.")
    ] = ""
    weights: Annotated[
        str, typer.Option(help="Round the model's matrices to int8 or int4 while it is loaded, on the CPU.")
    ] = ""

    def load(self, model: str, dtype: str | None = None) -> tuple[Any, Any]:
        """Load the model with its tokenizer, in the dtype of --dtype, or else in `dtype`; None: the faster one here."""
        from everlong.models import load

        if self.weights:
            return load(model, self.dtype or None, weights=self.weights, **on_device(self.device))
        return load(model, self.dtype or dtype, **on_device(self.device))


@dataclasses.dataclass(frozen=True)
class ModelOptions(Machine):
    """The same, with the settings of a memory."""

    settings: Settings = None

    def load_configured(
        self, model: str, dtype: str | None = None, *, text_alone: bool = False
    ) -> tuple[tuple[Any, Any], MemoryConfig]:
        """Load the model, and return the config that fits it, with what was set; `text_alone` for a memory of text
        alone.
        """
        from everlong.frame.model_setup import configured

        set_config(self.settings)  # a wrong setting is reported before a model is loaded
        network, tokenizer = self.load(model, dtype)
        config = configured(network, memory_settings(self.settings or ()), text_alone=text_alone)
        return (network, tokenizer), config


@dataclasses.dataclass(frozen=True)
class FilterOptions:
    """What a question may see, or what of a memory is meant."""

    source: Annotated[list[str] | None, typer.Option(help="Only this source; may be given several times.")] = None
    tag: Annotated[list[str] | None, typer.Option(help="Only what has this tag, or all of several.")] = None
    after: Annotated[str, typer.Option(help="Only what was read after this time: 2026-11-21, or 7d, 12h, 30m ago.")] = (
        ""
    )
    before: Annotated[str, typer.Option(help="Only what was read before this time.")] = ""
    role: Annotated[
        list[str] | None,
        typer.Option(help="Only what was read, asked or said; may be given several times."),
    ] = None
    origin: Annotated[
        str,
        typer.Option(help="Only what was read from this path, as `inspect` lists it where names are equal."),
    ] = ""
    happened_after: Annotated[str, typer.Option(help="Only text about events after this time: read --happened.")] = ""
    happened_before: Annotated[str, typer.Option(help="Only text about events before this time.")] = ""

    def where(self, *, answers_as_read: bool = False) -> Where:
        """Return what may be recalled.

        Raises ValueError for what is no time or no role.
        """
        from everlong.memory.where import Where, parse_time

        times = (self.after, self.before, self.happened_after, self.happened_before)
        after, before, happened_after, happened_before = (parse_time(time) if time else None for time in times)
        named = cast("list[Role] | None", self.role or None)
        sources, tags, origin = self.source or (), self.tag or (), self.origin or None
        return Where(sources, tags, after, before, named, origin, happened_after, happened_before, answers_as_read)
