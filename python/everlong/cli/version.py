"""`everlong --version`: what a report of a fault names. torch and transformers are not imported for it."""

from __future__ import annotations

import importlib.metadata
import pathlib

import typer

from everlong import _native
from everlong.text.terminal import print_escaped

_GPUS = pathlib.Path("/proc/driver/nvidia/gpus")


def print_version(question: bool) -> None:
    """Print versions, the device and the compiler of the native core, and end, where --version was given."""
    if not question:
        return
    print_escaped(f"everlong {_native.VERSION}")
    for package in ("torch", "transformers"):
        print_escaped(f"{package} {importlib.metadata.version(package)}")
    print_escaped(f"device {device()}")
    print_escaped(f"compiler {_native.build_in(_native.PACKAGE).get('compiler', 'unknown')}")
    raise typer.Exit


def device(gpus: pathlib.Path = _GPUS) -> str:
    """Return the names of the GPUs that the driver lists, or else the processor's."""
    from everlong.models.hardware import processor

    named = [_model_of(card) for card in sorted(gpus.glob("*/information"))]
    return ", ".join(named) or processor()


def _model_of(card: pathlib.Path) -> str:
    lines = (line.partition(":") for line in card.read_text(encoding="utf-8", errors="replace").splitlines())
    return next((value.strip() for name, _, value in lines if name == "Model"), "a GPU without a name")
