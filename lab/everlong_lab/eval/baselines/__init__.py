"""The baselines of the evaluation suites: one dataclass each, by name."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from everlong_lab.eval.baselines.base import Baseline, CannotAskError, MissingPackageError, ReadTexts, Reply
from everlong_lab.eval.baselines.bm25 import Bm25
from everlong_lab.eval.baselines.full import FullAttention
from everlong_lab.eval.baselines.gold import Gold
from everlong_lab.eval.baselines.memory import Everlong, Heads, Lexical, MeanPool, Survey
from everlong_lab.eval.baselines.minilm import MiniLm
from everlong_lab.eval.baselines.pages import RandomPages, RecentPages
from everlong_lab.eval.baselines.window import Window

__all__ = [
    "BASELINES",
    "Baseline",
    "CannotAskError",
    "MissingPackageError",
    "ReadTexts",
    "Reply",
    "baseline_of",
    "spec_of",
]

BASELINES: dict[str, type[Baseline]] = {
    kind.name: kind
    for kind in (
        Everlong,
        Survey,
        Heads,
        Lexical,
        MeanPool,
        RecentPages,
        RandomPages,
        Window,
        FullAttention,
        Bm25,
        MiniLm,
        Gold,
    )
}


def baseline_of(spec: str) -> Baseline:
    """Return a baseline by its name, or by `NAME:setting=value,...`. Raises ValueError with a list of what there is."""
    name, _, settings = spec.partition(":")
    if name not in BASELINES:
        raise ValueError(f"no baseline {name!r}; there are {', '.join(BASELINES)}")
    kind = BASELINES[name]
    hints = typing.get_type_hints(kind)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # every baseline is a dataclass
    given: dict[str, Any] = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        if key not in fields:
            raise ValueError(f"baseline {name} has no setting {key!r}; it has {', '.join(fields) or 'none'}")
        given[key] = _parse(value, fields[key], f"{name}:{key}")
    return kind(**given)


def _parse(text: str, hint: Any, where: str) -> Any:
    """Return a value of a field's type: yes or no, a number, or names joined by +."""
    hints = (hint, *typing.get_args(hint))
    if bool in hints:
        if text not in ("True", "False"):
            raise ValueError(f"{where}: {text!r} is neither True nor False")
        return text == "True"
    kinds = [kind for kind in hints if kind in (int, float, str)]
    if not kinds:
        return tuple(text.split("+"))
    try:
        return kinds[0](text)
    except ValueError:
        raise ValueError(f"{where}: {text!r} is no {kinds[0].__name__}") from None


def spec_of(baseline: Baseline) -> str:
    """Return its name and what differs from its defaults, as `baseline_of` reads it."""
    # A field that does not compare is none of its settings, such as what it has counted.
    fields = [field for field in dataclasses.fields(baseline) if field.compare]  # type: ignore[arg-type]  # every baseline is a dataclass
    values = {field.name: getattr(baseline, field.name) for field in fields}
    settings = [
        f"{field.name}={'+'.join(value) if isinstance(value := values[field.name], tuple) else value}"
        for field in fields
        if values[field.name] != field.default
    ]
    return ":".join(filter(None, (baseline.name, ",".join(settings))))
