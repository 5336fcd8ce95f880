"""Checks what the package needs: a recent torch and transformers, and native libraries that fit.

The native libraries (the pybind11 module `_core`, the torch op library) must be built, and fit this Python and this
torch. `everlong/__init__.py` imports this first, and the import checks what it can without loading any of them, which
takes seconds. What is loaded later is checked then. Every failure is an ImportError that says what is wrong and what to
do.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

# The oldest that everlong has run with (`make matrix`).
MINIMUM_TORCH = (2, 11)
MINIMUM_TRANSFORMERS = (5, 17)
PACKAGE = list(
    sys.modules["everlong"].__path__
)  # folders: in an editable install the sources and the libraries are apart

_REBUILD = (
    "Build everlong with the Python and the torch that are to use it, in a checkout of it: "
    "`pip install --no-build-isolation .`, or `make setup`."
)


def check_torch() -> None:
    """Raise ImportError when torch is missing or older than MINIMUM_TORCH, without importing it."""
    _check_release("torch", "PyTorch", MINIMUM_TORCH, _found("torch"), ", then build everlong against it")


def check_transformers() -> None:
    """Raise ImportError when transformers is missing or older than MINIMUM_TRANSFORMERS, without importing it."""
    _check_release("transformers", "transformers", MINIMUM_TRANSFORMERS, _found("transformers"))


def _found(package: str) -> str | None:
    """Return the release of a package that was imported, or else of what is installed; None without one."""
    if package in sys.modules:
        module = sys.modules[package]
        return None if module is None else str(module.__version__)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _check_release(package: str, name: str, oldest: tuple[int, int], found: str | None, then: str = "") -> None:
    minimum = ".".join(map(str, oldest))
    if found is None:
        raise ImportError(
            f"everlong needs {name} >= {minimum}, and {sys.executable} has none: `pip install '{package}>={minimum}'`."
        )
    release = re.match(r"(\d+)\.(\d+)", found)
    if release is None or (int(release[1]), int(release[2])) < oldest:
        raise ImportError(
            f"everlong needs {name} >= {minimum}, and {sys.executable} has {found}: "
            f"`pip install -U '{package}>={minimum}'`{then}."
        )


def _running() -> str:
    return f"Python {sys.version.split()[0]} and torch {_found('torch') or 'none'}"


def build_in(folders: Iterable[str | Path]) -> dict[str, str]:
    """Return what the build noted in one of `folders`: its python, torch and compiler; empty where nothing is built."""
    for folder in folders:
        record = Path(folder) / "native_build.json"
        if record.is_file():
            noted: dict[str, str] = json.loads(record.read_text())
            return noted
    return {}


def _built_for(folders: Iterable[str | Path]) -> str:
    """Return what the native libraries in `folders` were built for, as far as the build noted it."""
    built = build_in(folders)
    if not built:
        return f"It is not built; this is {_running()}."
    return f"It was built for Python {built['python']} and torch {built['torch']}; this is {_running()}."


def check_built(package_path: list[str]) -> None:
    """Raise ImportError where `everlong._core` is not there for this Python, without importing it."""
    if importlib.util.find_spec("everlong._core") is None:
        raise ImportError(
            f"everlong's native module cannot be used: it is missing. {_built_for(package_path)} {_REBUILD}"
        )


def check_core(package_path: list[str]) -> Path:
    """Import `everlong._core` and return its folder, where all native libraries stand side by side.

    `package_path` is the package's `__path__`, as PACKAGE.
    """
    try:
        core = importlib.import_module("everlong._core")
    except ImportError as error:
        built_for = _built_for(package_path)
        raise ImportError(f"everlong's native module cannot be used: {error}. {built_for} {_REBUILD}") from error
    return Path(str(core.__file__)).parent


def explained(error: ImportError) -> ImportError:
    """Return what `check_core` says where the native module cannot be loaded, or else `error`."""
    try:
        check_core(PACKAGE)
    except ImportError as why:
        return why
    return error


def load_ops(folder: Path) -> None:
    """Register `torch.ops.everlong.*` from the libraries in `folder`. Doing it twice does nothing.

    The GPU's libraries are loaded where everlong was built with them and torch has a GPU, too.
    """
    torch = importlib.import_module("torch")
    libraries = [folder / "libeverlong_ops.so"]
    for_gpu = folder / "libeverlong_gpu_ops.so"
    if for_gpu.is_file() and (torch.version.cuda or torch.version.hip):
        libraries.append(for_gpu)
    for library in libraries:
        try:
            torch.ops.load_library(library)
        except OSError as error:
            raise ImportError(
                f"everlong's torch operators cannot be loaded: {error}. {_built_for([folder])} {_REBUILD}"
            ) from error


check_torch()
check_transformers()
check_built(PACKAGE)
VERSION = importlib.metadata.version("everlong")  # pyproject.toml's
