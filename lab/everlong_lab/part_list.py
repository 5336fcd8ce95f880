"""Which parts can be trained and measured: the modules `train` and `measure` of a part.

Those of everlong's own parts are here, a folder each in `everlong_lab.parts`. Those of a part that another package
names stand in that package.
"""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
from types import ModuleType

from everlong import part_list
from everlong.errors import EverlongError

# The router of a memory's lists is trained and measured. It takes part in no memory.
_WITHOUT_HOOKS = ("router",)


def names() -> tuple[str, ...]:
    """Return the names of all parts. Nothing of them is imported."""
    return (*part_list.names(), *_WITHOUT_HOOKS)


def module(name: str, what: str) -> ModuleType:
    """Return the module `train` or `measure` of a part. EverlongError for an unknown part, or one that lacks it."""
    if name not in names():
        raise EverlongError(f"there is no part {name!r}: there are {', '.join(names())}")
    found = _spec_of(name, what)
    if found is None:
        raise EverlongError(f"the part {name!r} has no {what}")
    return importlib.import_module(found[0])


def file_of(name: str, what: str) -> pathlib.Path | None:
    """Return that module's file, None where there is none. Nothing of the part is imported."""
    found = _spec_of(name, what)
    return None if found is None else found[1]


def _spec_of(name: str, what: str) -> tuple[str, pathlib.Path] | None:
    """Return the name and the file of a part's module. The file is looked for, as finding a module imports packages."""
    for package in (f"{__package__}.parts.{name}", *_own_package(name)):
        spec = importlib.util.find_spec(package)
        for folder in () if spec is None else spec.submodule_search_locations or ():
            if (file := pathlib.Path(folder, f"{what}.py")).is_file():
                return f"{package}.{what}", file
    return None


def _own_package(name: str) -> tuple[str, ...]:
    return (part_list.package_of(name),) if part_list.is_installed(name) else ()
