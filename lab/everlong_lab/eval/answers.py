"""The findings of an evaluation as they come: a file of JSON lines that is only appended to, so
that a run can go on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

_SETTINGS = "settings"
_MADE_WITH = "made_with"


class AnswerFile:
    """A file of answers. `settings` are its first line. Raises ValueError for a file with other settings, as that is
    another run.

    The attribute `settings` holds them as JSON gives them back. `provenance` is what this process adds rows with. It
    gets a line of its own before the first row that is added with something else than the rows before. Another
    `provenance` is still the same run.
    """

    def __init__(
        self, path: pathlib.Path, settings: Mapping[str, Any], made_with: Mapping[str, Any] | None = None
    ) -> None:
        self._path = path
        self._own = None if made_with is None else json.loads(json.dumps(dict(made_with)))
        self._last: dict[str, Any] | None = None  # what the newest rows were added with
        self.rows: list[dict[str, Any]] = []
        self.settings: dict[str, Any] = json.loads(json.dumps(dict(settings)))
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = _whole_lines(path)
        if not lines:
            self._append({_SETTINGS: self.settings})
            return
        kept, now = _flat(json.loads(lines[0]).get(_SETTINGS, {})), _flat(self.settings)
        different = sorted(key for key in {*kept, *now} if kept.get(key) != now.get(key))
        if different:
            told = "; ".join(f"{key}: {kept.get(key)!r} then, {now.get(key)!r} now" for key in different)
            raise ValueError(f"{path.parent} holds a run with other settings ({told}): name another folder with --out")
        rows = [json.loads(line) for line in lines[1:]]
        self.rows = [row for row in rows if _MADE_WITH not in row]
        self._last = next((row[_MADE_WITH] for row in reversed(rows) if _MADE_WITH in row), None)

    def add(self, **row: Any) -> None:
        """Add a row; it is on disk when this returns."""
        self.sign()
        self._append(row)
        self.rows.append(json.loads(json.dumps(row)))

    def sign(self) -> None:
        """Write what rows are added with from here on, if it differs from before."""
        if self._own is not None and self._own != self._last:
            self._append({_MADE_WITH: self._own})
            self._last = self._own

    @property
    def made_with(self) -> list[dict[str, Any]]:
        """What its rows were added with, oldest first, each once; older files may say nothing of their rows."""
        return made_with_in(self._path)

    def find(self, **where: Any) -> list[dict[str, Any]]:
        """Return the rows with these values, oldest first."""
        return [row for row in self.rows if all(row.get(key) == value for key, value in where.items())]

    def _append(self, row: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


def deciding(memory: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values of a MemoryConfig that decide an answer: the RAM that the memory may take does not."""
    archive = {name: value for name, value in memory["archive"].items() if name != "host_bytes"}
    return {**memory, "archive": archive}


def digest(value: Any) -> str:
    """Return a short digest of plain values; other values give another digest."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def settings_of(path: pathlib.Path) -> dict[str, Any]:
    """Return the settings of the run whose answers are in the file; empty where there is none."""
    with contextlib.suppress(FileNotFoundError), path.open(encoding="utf-8") as file:
        line = file.readline()
        if line.endswith("\n"):
            settings: dict[str, Any] = json.loads(line).get(_SETTINGS, {})
            return settings
    return {}


def made_with_in(*files: pathlib.Path) -> list[dict[str, Any]]:
    """Return what the rows of these files were added with, oldest first, each once; a missing file has none."""
    found: list[dict[str, Any]] = []
    for file in files:
        rows = map(json.loads, _whole_lines(file)[1:])
        found += (row[_MADE_WITH] for row in rows if _MADE_WITH in row and row[_MADE_WITH] not in found)
    return found


def dtype_of(folder: pathlib.Path | None, file: str) -> str | None:
    """Return the dtype in which the run with answers in that file began; None where there is none.

    A run that goes on keeps its dtype, even if another one would be faster today.
    """
    return None if folder is None else settings_of(folder / file).get("dtype")


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return one level: nested settings come under "outer.inner", however deep."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": one for inner, one in _flat(value).items()}
        else:
            flat[key] = value
    return flat


def _whole_lines(path: pathlib.Path) -> list[str]:
    """Return the file's lines; an incomplete last line is cut off."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return whole.decode("utf-8").splitlines()
