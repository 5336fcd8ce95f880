"""What a GGUF file says of itself, read by the core: checked against the file's size, and in a tenth of a second.

`GgufReader` has what transformers uses of `gguf.GGUFReader`, so that it can take its place while a model is loaded.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import everlong._core as _core
from everlong.errors import CorruptMemoryError, EverlongError

# GGUF's numbers for types of values.
ARRAY, TEXT = 9, 8
_PLAIN: dict[int, type[np.generic]] = {0: np.float32, 1: np.float16, 28: np.float64}


class ModelFileError(EverlongError, ValueError):
    """A model's file is damaged, cut short, or none. The message names it and what is wrong."""


@dataclasses.dataclass(frozen=True)
class Field:
    """One entry of the metadata, in the form of `gguf.ReaderField`."""

    types: Sequence[int]  # the type; of an array that and the type of its values
    parts: Sequence[Any]  # the values: a text as its bytes, a number as a sequence of one

    @property
    def data(self) -> range:
        return range(len(self.parts))


@dataclasses.dataclass(frozen=True)
class Tensor:
    """Where a tensor lies. Sizes of `shape` begin with the last one, as in the file."""

    name: str
    type: int  # GGUF's number of its format
    sizes: tuple[int, ...]  # rows first: [N, K] of a matrix
    offset: int  # in the file
    bytes: int  # -1 for a format that the core does not know
    file: pathlib.Path

    @property
    def tensor_type(self) -> Any:
        import gguf

        return gguf.GGMLQuantizationType(self.type)

    @property
    def shape(self) -> np.ndarray:
        return np.array(self.sizes[::-1], dtype=np.uint64)

    @property
    def n_elements(self) -> int:
        return math.prod(self.sizes)

    @property
    def data(self) -> np.ndarray:
        """Its numbers, or its blocks as bytes [..., bytes of a row], mapped from the file."""
        import gguf

        if self.type in _PLAIN:
            return np.memmap(self.file, dtype=_PLAIN[self.type], mode="r", offset=self.offset, shape=self.sizes)
        elements, size = gguf.GGML_QUANT_SIZES[self.tensor_type]
        shape = (*self.sizes[:-1], self.sizes[-1] // elements * size)
        return np.memmap(self.file, dtype=np.uint8, mode="r", offset=self.offset, shape=shape)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One entry of the metadata as the core reads it."""

    type: int  # GGUF's number for the type of the values
    is_array: bool
    values: list[Any]  # numbers, or texts as bytes; one where it is no array


class GgufReader:
    """A file's metadata and tensors. ModelFileError for one that is damaged."""

    def __init__(self, path: str | pathlib.Path) -> None:
        self._path = pathlib.Path(path)
        self._identity = _identity(self._path)
        self.file = self._path.resolve()
        try:
            entries, tensors, self.data_offset = _core.read_gguf(str(self.file))
        except CorruptMemoryError as error:
            raise ModelFileError(str(error)) from error
        self.entries: Mapping[str, Entry] = {
            key: Entry(kind, is_array, values) for key, kind, is_array, values in entries
        }
        self.tensors = [
            Tensor(name, kind, sizes, offset, size, self.file) for name, kind, sizes, offset, size in tensors
        ]

    @functools.cached_property
    def fields(self) -> Mapping[str, Field]:
        return {key: _field(entry) for key, entry in self.entries.items()}

    def value(self, key: str) -> Any:
        """Return an entry: a number, a text, or a list of them; None where there is none."""
        if key not in self.entries:
            return None
        entry = self.entries[key]
        plain = [one.decode("utf-8", "replace") if isinstance(one, bytes) else one for one in entry.values]
        return plain if entry.is_array else plain[0]

    @property
    def architecture(self) -> str:
        """The name of the model's architecture. ModelFileError where the file has none."""
        name = self.value("general.architecture")
        if not isinstance(name, str) or not name:
            raise self.refusal("its general.architecture is no text")
        return name

    def refusal(self, what: str) -> ModelFileError:
        """Return the error that names the file and what is wrong with it."""
        return ModelFileError(f"'{self.file}' is no sound GGUF file: {what}")

    def require_unchanged(self) -> None:
        """Raise ModelFileError where the path has come to mean another file, or the file was written to.

        A model is made of what transformers and everlong read from the path, one after the other.
        """
        try:
            same = self._identity == _identity(self._path) == _identity(self.file)
        except OSError:
            same = False
        if not same:
            raise ModelFileError(f"'{self._path}' was replaced or written to while it was loaded; load it again")


def _identity(path: pathlib.Path) -> tuple[int, ...]:
    """Return numbers that change where a file is replaced or written to."""
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _field(entry: Entry) -> Field:
    is_text = entry.type == TEXT
    return Field(
        [ARRAY, entry.type] if entry.is_array else [entry.type],
        entry.values if is_text else [(one,) for one in entry.values],
    )
