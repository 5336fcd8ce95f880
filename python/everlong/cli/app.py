"""What all commands share: the application, its options, its exit codes."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everlong import _native
from everlong.cli.interrupts import Commands
from everlong.cli.version import print_version
from everlong.errors import EverlongError
from everlong.models import DEFAULT_MODEL as DEFAULT_MODEL  # for the commands, too
from everlong.paths import from_home
from everlong.text.terminal import escape_controls, print_escaped

if TYPE_CHECKING:
    from everlong.config import MemoryConfig


class Application(typer.Typer):
    """Commands whose paths may begin with ~, as in `--memory=~/library`, where a shell leaves it."""

    def command(  # type: ignore[override]  # it hands on whatever it is given
        self, *args: Any, **kwargs: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        register = super().command(*args, **kwargs)

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def call(**args: Any) -> Any:
                return function(**{name: _from_home(value) for name, value in args.items()})

            register(call)
            return function

        return add


def _from_home(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_home(one) for one in value]
    return from_home(value) if isinstance(value, Path) else value


def require_exists(path: Path, *, folder: bool) -> None:
    """Refuse a file or folder of the command line that is not there."""
    if not (path.is_dir() if folder else path.exists() and not path.is_dir()):
        raise typer.BadParameter(f"{'folder' if folder else 'file'} '{path}' does not exist")


# An entry point of this group names a module that adds commands to `app`.
COMMANDS = "everlong.commands"

app = Application(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def everlong(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show versions, device and compiler.", callback=print_version, is_eager=True),
    ] = False,
) -> None:
    """A memory of a million tokens and more for HuggingFace causal LMs."""


Model = Annotated[str, typer.Option("--model", "-m", help="Model to use, by name or path; smollm2 is embedded.")]
StoredModel = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Model to use, by name or path; by default the one that read the memory, or smollm2 for a new memory.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Length = Annotated[int, typer.Option("--max-new-tokens", help="Most tokens in an answer.")]
OwnLength = Annotated[
    int | None,
    typer.Option("--max-new-tokens", help="Most tokens in an answer; by default the model's own setting, or 64."),
]
System = Annotated[
    str | None, typer.Option(help="System message before the question, where the model has a chat template.")
]
MemoryFolder = Annotated[Path, typer.Option("--memory", "-d", help="Folder of the memory.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "--memory-config",
        help="A setting of the memory, such as search.groups=2; or a .json or .toml file of settings. May be given "
        "several times.",
    ),
]
ChatTemplateKwargs = Annotated[
    str, typer.Option(help='Variables of the tokenizer\'s chat template, as JSON: {"enable_thinking": false}.')
]


def print_json(value: Any) -> None:
    """Print JSON; NaN and infinity become null, as JSON has neither."""
    print(json.dumps(_finite(value), indent=2, default=str, allow_nan=False))


def print_json_line(value: Any) -> None:
    """Print the same on one line, at once."""
    print(json.dumps(_finite(value), default=str, allow_nan=False), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def on_device(device: str) -> dict[str, Any]:
    """Return what --device says as arguments of `load`; "" leaves the device to `load`.

    Raises ValueError for a device that does not exist.
    """
    if not device:
        return {}
    kind, _, number = device.partition(":")
    if kind == "cuda":
        import torch

        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (number.isdigit() and int(number) >= there) or there == 0:
            raise ValueError(f"--device {device}: torch {torch.__version__} sees {there} GPUs here")
    return {"device_map": device}


def parse_chat_template_kwargs(option: str) -> dict[str, Any]:
    """Return what --chat-template-kwargs says. Raises ValueError for what is no JSON object."""
    try:
        variables = json.loads(option) if option else {}
    except json.JSONDecodeError as error:
        raise ValueError(f"--chat-template-kwargs is no JSON: {error}") from None
    if not isinstance(variables, dict):
        raise ValueError(f'--chat-template-kwargs is {option}, expected an object such as {{"enable_thinking": false}}')
    return variables


def set_config(settings: Sequence[str] | None) -> MemoryConfig:
    """Return MemoryConfig() with these settings. Raises ValueError where one is wrong."""
    from everlong.cli.settings import memory_settings
    from everlong.config import MemoryConfig

    return MemoryConfig().with_settings(memory_settings(settings or ()))


def model_of(memory: Path) -> str:
    """Return the model that an existing memory was read with."""
    from everlong.memory import Memory

    with Memory.open(memory, read_only=True) as kept:
        return kept.core.manifest().attributes.get("model", "") or DEFAULT_MODEL


def model_for(memory: Path, kwargs: str) -> str:
    """Return the named model, or else the memory's model, or else the embedded one for a new memory."""
    from everlong.memory import Memory

    return kwargs or (model_of(memory) if Memory.exists(memory) else DEFAULT_MODEL)


def startup_status(model: str, *, quiet: bool) -> str:
    """Say which model is being loaded, before the seconds that importing torch takes. Return it."""
    if not quiet:
        print_escaped(f"loading {model}", stderr=True)
    return model


def main() -> None:
    """Run the command line. Expected failures become one line on standard error."""
    _silence_dependencies()
    _escape_messages()
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        if not _is_expected(error):
            raise
        if isinstance(error, ImportError):
            error = _native.explained(error)
        print_escaped(f"everlong: {error}", lines=True, stderr=True)
        raise SystemExit(1) from None


def _silence_dependencies() -> None:
    """Silence what packages tell developers; errors are still raised and shown.

    All of it is shown on request: TRANSFORMERS_VERBOSITY=warning, python -W default -m everlong.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # read when transformers is imported
    if sys.warnoptions:
        return
    warnings.filterwarnings("ignore", module=r"(?!everlong\b)")
    for deprecated in (FutureWarning, DeprecationWarning):  # they may name the line of ours that called
        warnings.simplefilter("ignore", deprecated)


def _escape_messages() -> None:
    """Let warnings, messages of logs and tracebacks, which quote names and texts, drive no terminal either."""
    formatted = warnings.formatwarning
    warnings.formatwarning = lambda *args, **kwargs: escape_controls(formatted(*args, **kwargs), lines=True)
    sys.excepthook = lambda *raised: print_escaped(
        "".join(traceback.format_exception(*raised)), lines=True, stderr=True, end=""
    )
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_EscapingFormatter())


class _EscapingFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record), lines=True)


def _is_expected(error: Exception) -> bool:
    """Return whether an error says what is wrong with the input, or what this machine lacks. Others are bugs of
    everlong.
    """
    if isinstance(error, EverlongError | ValueError | OSError | ImportError):
        return True
    # A package that nobody has imported raises nothing, and importing torch for --help would take seconds.
    jinja2, torch = sys.modules.get("jinja2"), sys.modules.get("torch")
    if jinja2 is not None and isinstance(error, jinja2.TemplateError):  # a chat template's own refusal
        return True
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    # The CPU's error has no type of its own
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
