"""Texts that were accepted and not read yet, on disk: a service that was killed reads them when it starts again."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import IO

_ORDER = "order.json"  # written last: without it, a text was not accepted


@dataclasses.dataclass(frozen=True)
class Named:
    """The names under which a text is read."""

    source: str = ""
    tags: tuple[str, ...] = ()
    happened: str | None = None
    plain: bool = False  # it was sent as text, not as a file


@dataclasses.dataclass(frozen=True)
class Order:
    """A text to read into a memory."""

    id: str
    memory: str
    key: str
    file: str  # the name of the file with the text
    number: int  # they are read in this order
    named: Named


class Spool:
    """A folder of orders. One process uses it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._last = max((order.number for order in self.waiting()), default=0)

    def waiting(self) -> list[Order]:
        """Return what was accepted before, in its order. What was not accepted whole is removed."""
        found = []
        for folder in self._root.iterdir():
            try:
                row = json.loads((folder / _ORDER).read_bytes())
                named = Named(**{**row["named"], "tags": tuple(row["named"]["tags"])})
                found.append(Order(**{**row, "named": named}))
            except (OSError, ValueError, TypeError, KeyError):
                shutil.rmtree(folder, ignore_errors=True)
        return sorted(found, key=lambda order: order.number)

    def begin(self, name: str) -> tuple[str, IO[bytes]]:
        """Open a new file of that name. Return its id, and the file to write into."""
        id = uuid.uuid4().hex
        folder = self._root / id
        folder.mkdir(mode=0o700)
        return id, open(folder / name, "xb")

    def accept(self, id: str, file: IO[bytes], memory: str, key: str, named: Named) -> Order:
        """Make a file that was written whole durable, and return its order."""
        file.flush()
        os.fsync(file.fileno())
        file.close()
        self._last += 1
        order = Order(id, memory, key, Path(file.name).name, self._last, named)
        folder = self._root / id
        with open(folder / _ORDER, "w") as written:
            json.dump(dataclasses.asdict(order), written)
            written.flush()
            os.fsync(written.fileno())
        for synced in (folder, self._root):
            opened = os.open(synced, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)
        return order

    def file(self, order: Order) -> Path:
        """Return where the text of an order stands."""
        return self._root / order.id / order.file

    def remove(self, id: str) -> None:
        """Forget an order: it was read, refused or taken back."""
        shutil.rmtree(self._root / id, ignore_errors=True)
