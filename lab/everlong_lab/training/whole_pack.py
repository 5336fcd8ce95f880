"""Train several parts of a model's pack in turn, within a time: what `everlong train all` does."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everlong.models.pack import Pack, PackPart, load_pack, pack_of
from everlong_lab.training.loop import Progress
from everlong_lab.training.run import Run, plain

_DONE = "trained.json"  # in a part's folder: what was made there, and of what


@dataclasses.dataclass(frozen=True)
class ToTrain:
    """A part that may be trained: its name, its settings, and its `train`."""

    name: str
    training: Any
    train: Callable[[Run, Any], dict[str, PackPart]]


def train_parts(
    model: Any,
    tokenizer: Any,
    there: Sequence[ToTrain],
    names: Sequence[str],
    *,
    work: pathlib.Path,
    out: pathlib.Path,
    before: Pack | None = None,
    minutes: float | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Train the parts of `there` that are named, in their order; return which were trained.

    Each has a folder in `work`, and goes into the pack `out` once it is done. A part is given what the model had
    `before` and what was made already. No part begins once `minutes` have passed. The training of each part takes at
    most its share of the time that is left, without the states that it needs first. Called again with the same
    arguments, training goes on: a part that is done is not trained again. Raises ValueError for an unknown part.
    """
    unknown = [name for name in names if name not in [part.name for part in there]]
    if unknown:
        raise ValueError(f"there is no part {unknown[0]!r}: there are {', '.join(part.name for part in there)}")
    started = time.monotonic()
    wanted = [part for part in there if part.name in names]
    trained: list[str] = []
    for number, part in enumerate(wanted):
        folder = work / part.name
        if _is_done(folder, out, plain(part.training)):
            say(f"{part.name}: already trained")
            trained.append(part.name)
            continue
        left = None if minutes is None else minutes - (time.monotonic() - started) / 60
        if left is not None and left <= 0:
            say(f"{part.name}: left out, as the time is over; the same command goes on")
            continue
        share = None if left is None else left / (len(wanted) - number)
        say(f"{part.name}: training")
        training = dataclasses.replace(part.training, minutes=share)
        made = part.train(Run(model, tokenizer, folder, in_the_making(before, out), progress), training)
        pack_of(model, made).save(out)
        folder.mkdir(parents=True, exist_ok=True)
        said = {"ids": _ids(made), "asked": plain(part.training)}
        (folder / _DONE).write_text(json.dumps(said))
        trained.append(part.name)
    return trained


def in_the_making(before: Pack | None, out: pathlib.Path) -> Pack | None:
    """Return what the model had before, with what was made anew in its place."""
    own = load_pack(out) if out.exists() else None
    if own is None or before is None:
        return own or before
    return dataclasses.replace(own, parts={**before.parts, **own.parts})


def _is_done(folder: pathlib.Path, out: pathlib.Path, settings: Mapping[str, Any]) -> bool:
    file = folder / _DONE
    if not file.exists() or not out.exists():
        return False
    done, kept = json.loads(file.read_text()), _ids(load_pack(out).parts)
    return bool(done["asked"] == settings and done["ids"].items() <= kept.items())


def _ids(parts: Mapping[str, PackPart]) -> dict[str, str]:
    return {name: part.id for name, part in parts.items()}
