"""What commands say of readings that were cut short, and of what a memory has kept."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everlong.memory import Memory
    from everlong.memory.unfinished import InterruptedReading


def unfinished_of(memory: Memory) -> list[dict[str, Any]]:
    """Return the unfinished readings of a memory as plain values, for JSON."""
    from everlong.memory.unfinished import InterruptedReading, unfinished_in

    shown = [field.name for field in dataclasses.fields(InterruptedReading) if field.name != "synced"]
    return [{name: getattr(one, name) for name in shown} for one in unfinished_in(memory)]


def unfinished_notes(memory: Memory, folder: pathlib.Path) -> list[str]:
    """Return a line for each unfinished reading: what is there, and the command that goes on."""
    from everlong.memory.unfinished import unfinished_in

    return [
        f"[unfinished: {one.tokens:,} tokens of {', '.join(one.sources)} are there; {_to_go_on(one, folder)}]"
        for one in unfinished_in(memory)
    ]


def stored_in(folder: pathlib.Path) -> str:
    """Return what a reading that was stopped says of the memory in `folder`; "" where that has nothing."""
    from everlong.errors import EverlongError
    from everlong.memory import Memory

    try:
        with Memory.open(folder, read_only=True) as memory:
            tokens, found = memory.stats().tokens, unfinished_of(memory)
    except EverlongError:
        return ""
    if found:
        return f"{found[-1]['tokens']:,} tokens of {', '.join(found[-1]['sources'])} are kept in {folder}"
    return f"{tokens:,} tokens are kept in {folder}" if tokens > 0 else ""


def _to_go_on(one: InterruptedReading, folder: pathlib.Path) -> str:
    if len(one.origins) < len(one.sources):  # a text that was given by hand
        return "to go on, read the same text under the same name"
    if one.synced:  # the source is the path from the folder on
        synced = one.origins[0].removesuffix(one.sources[0])
        return f"go on with: {shlex.join(['everlong', 'sync', synced, '--memory', str(folder)])}"
    command = ["everlong", "read", *one.origins, "--memory", str(folder)]
    for tag in one.tags:
        command += ["--tag", tag]
    if len(one.sources) == 1 and one.sources != tuple(pathlib.PurePath(origin).stem for origin in one.origins):
        command += ["--source", one.sources[0]]
    return f"go on with: {shlex.join(command)}"
