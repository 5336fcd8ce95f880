"""What a GGUF file says of itself, read by the core: checked against the file's size, and in a tenth of a second.

`GgufReader` has what transformers uses of `gguf.GGUFReader`, so that it can take its place while a model is loaded.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import everlong._core as _core
from everlong.errors import CorruptMemoryError, EverlongError

_ARRAY = 9  # GGUF's number for the type of an array
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


class GgufReader:
    """A file's metadata and tensors. ModelFileError for one that is damaged."""

    def __init__(self, file: str | pathlib.Path) -> None:
        self.file = pathlib.Path(file)
        try:
            entries, tensors, self.data_offset = _core.read_gguf(str(self.file))
        except CorruptMemoryError as error:
            raise ModelFileError(str(error)) from error
        self._entries: dict[str, tuple[int, bool, list[Any]]] = {
            key: (kind, is_array, values) for key, kind, is_array, values in entries
        }
        self.tensors = [
            Tensor(name, kind, sizes, offset, size, self.file) for name, kind, sizes, offset, size in tensors
        ]

    @functools.cached_property
    def fields(self) -> Mapping[str, Field]:
        return {key: _field(*entry) for key, entry in self._entries.items()}

    def value(self, key: str) -> Any:
        """Return an entry: a number, a text, or a list of them; None where there is none."""
        if key not in self._entries:
            return None
        _, is_array, values = self._entries[key]
        plain = [one.decode("utf-8", "replace") if isinstance(one, bytes) else one for one in values]
        return plain if is_array else plain[0]


def _field(kind: int, is_array: bool, values: list[Any]) -> Field:
    parts = values if values and isinstance(values[0], bytes) else [(one,) for one in values]
    return Field([_ARRAY, kind] if is_array else [kind], parts)
