"""What all commands share: the application, its options, its exit codes."""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from everlong.errors import EverlongError
from everlong.models import DEFAULT_MODEL as DEFAULT_MODEL  # for the commands, too

if TYPE_CHECKING:
    from everlong.config import MemoryConfig
    from everlong.memory.where import Where

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A memory of a million tokens and more for HuggingFace causal LMs.",
)

Model = Annotated[str, typer.Option("--model", "-m", help="Name or path; smollm2 is the embedded default.")]
KeptModel = Annotated[
    str,
    typer.Option("--model", "-m", help="Name or path; by default the one that read it, smollm2 for a new memory."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Length = Annotated[int, typer.Option("--max-new-tokens", help="Tokens of an answer, at most.")]
OwnLength = Annotated[
    int | None,
    typer.Option("--max-new-tokens", help="Tokens of an answer, at most; by default the model's own setting, or 64."),
]
System = Annotated[
    str | None, typer.Option(help="A system message before the question, where there is a chat template.")
]
MemoryFolder = Annotated[Path, typer.Option("--memory", "-d", help="Folder of the memory.")]
Sources = Annotated[list[str] | None, typer.Option("--source", help="Recall from this source only; or from several.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Recall only what has this tag; or all of several.")]
After = Annotated[str, typer.Option(help="Recall only what was read after that: 2026-11-21, or 7d, 12h, 30m ago.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "--memory-config", help="A setting of MemoryConfig: search.groups=2; or a .json or .toml file of them."
    ),
]
Device = Annotated[
    str, typer.Option(help="Where the model computes: cuda:1, cpu; by default a GPU that it fits, else the CPU.")
]
Dtype = Annotated[
    str, typer.Option(help="float32, bfloat16, float16 or auto; by default the faster one on a CPU, on a GPU its own.")
]
ChatTemplateKwargs = Annotated[
    str, typer.Option(help='Variables of the tokenizer\'s chat template, as JSON: {"enable_thinking": false}.')
]
Roles = Annotated[
    list[str] | None,
    typer.Option("--role", help="Recall only what was read, asked or said; may be given several times."),
]
Origin = Annotated[
    str, typer.Option(help="Recall only what was read from there: a path as `inspect` lists it, of two of one name.")
]
HappenedAfter = Annotated[str, typer.Option(help="Recall only what is told of after that: read --happened.")]
HappenedBefore = Annotated[str, typer.Option(help="Recall only what is told of before that.")]
Before = Annotated[str, typer.Option(help="Recall only what was read before that.")]


def print_json(value: Any) -> None:
    """JSON has no NaN and no infinity: they are null."""
    print(json.dumps(_finite(value), indent=2, default=str, allow_nan=False))


def print_json_line(value: Any) -> None:
    """The same on one line, at once."""
    print(json.dumps(_finite(value), default=str, allow_nan=False), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def where_of(
    sources: list[str] | None,
    tags: list[str] | None,
    after: str,
    before: str,
    roles: list[str] | None = None,
    origin: str = "",
    happened_after: str = "",
    happened_before: str = "",
) -> Where:
    """What the options --source, --tag, --after, --before, --role, --origin and --happened-... name."""
    from everlong.memory.where import Role, Where, parse_time

    return Where(
        sources or (),
        tags or (),
        parse_time(after) if after else None,
        parse_time(before) if before else None,
        cast("list[Role] | None", roles or None),
        origin or None,
        parse_time(happened_after) if happened_after else None,
        parse_time(happened_before) if happened_before else None,
    )


def on_device(device: str) -> dict[str, Any]:
    """What --device says, as `load` takes it; "" leaves it to that.

    ValueError for a device that there is not.
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
    """What --chat-template-kwargs says; ValueError for what is no JSON object."""
    try:
        variables = json.loads(option) if option else {}
    except json.JSONDecodeError as error:
        raise ValueError(f"--chat-template-kwargs is no JSON: {error}") from None
    if not isinstance(variables, dict):
        raise ValueError(f'--chat-template-kwargs is {option}, expected an object such as {{"enable_thinking": false}}')
    return variables


def set_config(settings: Sequence[str] | None) -> MemoryConfig:
    """MemoryConfig() with what was set; ValueError where that is wrong."""
    from everlong.cli.settings import memory_settings
    from everlong.config import MemoryConfig

    return MemoryConfig().with_settings(memory_settings(settings or ()))


def load_configured(
    model: str,
    settings: Sequence[str] | None,
    *,
    text_alone: bool = False,
    dtype: str | None = None,
    device: str = "",
) -> tuple[tuple[Any, Any], MemoryConfig]:
    """A model with its tokenizer, and the config that fits it, and a memory of text alone, with what was set.

    `dtype` by its name; None: the faster one here.
    """
    from everlong.cli.settings import memory_settings
    from everlong.frame.serve import configured
    from everlong.models import load

    set_config(settings)  # what is wrong is told before a model is loaded
    network, tokenizer = load(model, dtype, **on_device(device))
    return (network, tokenizer), configured(network, memory_settings(settings or ()), text_alone=text_alone)


def model_of(memory: Path) -> str:
    """The model that an existing memory was read with."""
    from everlong.memory import Memory

    with Memory.open(memory, read_only=True) as kept:
        return kept.core.manifest().attributes.get("model", "") or DEFAULT_MODEL


def model_for(memory: Path, named: str) -> str:
    """The model that is named, else that of the memory, else the embedded one for a memory that is to be made."""
    from everlong.memory import Memory

    return named or (model_of(memory) if Memory.exists(memory) else DEFAULT_MODEL)


def main() -> None:
    """Entry point: expected failures become one line on standard error."""
    _silence_dependencies()
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        if not _is_expected(error):
            raise
        print(f"everlong: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def _silence_dependencies() -> None:
    """What packages tell the developers of others is no news to who calls a command; errors are raised, and told.

    All of it is told where that is asked for: TRANSFORMERS_VERBOSITY=warning, python -W default -m everlong.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # read when transformers is imported
    if sys.warnoptions:
        return
    warnings.filterwarnings("ignore", module=r"(?!everlong\b)")
    for deprecated in (FutureWarning, DeprecationWarning):  # they may name the line of ours that called
        warnings.simplefilter("ignore", deprecated)


def _is_expected(error: Exception) -> bool:
    """Whether it says what is wrong with what was given, or what this machine lacks; any other is a mistake of ours."""
    if isinstance(error, EverlongError | ValueError | OSError | ImportError):
        return True
    # Of packages that nobody has imported nothing is raised, and importing torch for --help would take seconds.
    jinja2, torch = sys.modules.get("jinja2"), sys.modules.get("torch")
    if jinja2 is not None and isinstance(error, jinja2.TemplateError):  # a chat template's own refusal
        return True
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)  # the CPU's has no type of its own
