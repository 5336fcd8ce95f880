"""A GGUF file in parts that a test may change: entries of its metadata, its table of tensors, and their numbers."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import everlong._core as _core

TEXT, ARRAY = 8, 9
FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
TYPES = (*FORMATS, TEXT)
FLOATS = (6, 12)


@dataclasses.dataclass
class Entry:
    """One entry of the metadata."""

    key: str
    type: int
    is_array: bool
    values: Sequence[Any] = dataclasses.field(repr=False)  # numbers, or texts as bytes


@dataclasses.dataclass
class Tensor:
    """One row of the table of tensors."""

    name: str
    type: int
    shape: tuple[int, ...]  # rows first
    offset: int  # from where the tensors begin


@dataclasses.dataclass
class Parts:
    """A whole file, as the core reads it."""

    entries: list[Entry]
    tensors: list[Tensor]
    data: bytes
    version: int = 3

    @classmethod
    def of(cls, file: Path) -> Parts:
        entries, tensors, begin = _core.read_gguf(str(file))
        return cls(
            [Entry(*entry) for entry in entries],
            [Tensor(name, kind, shape, offset - begin) for name, kind, shape, offset, _ in tensors],
            file.read_bytes()[begin:],
        )

    def entry(self, key: str) -> Entry:
        return next(entry for entry in self.entries if entry.key == key)

    def encoded(self) -> bytes:
        out = b"GGUF" + struct.pack("<IQQ", self.version, len(self.tensors), len(self.entries))
        for entry in self.entries:
            values = b"".join(_value(entry.type, value) for value in entry.values)
            kind = (ARRAY, entry.type, len(entry.values)) if entry.is_array else (entry.type,)
            out += _text(entry.key.encode()) + struct.pack("<IIQ" if entry.is_array else "<I", *kind) + values
        for tensor in self.tensors:
            sizes = struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape[::-1])
            out += _text(tensor.name.encode()) + struct.pack("<I", len(tensor.shape)) + sizes
            out += struct.pack("<iQ", tensor.type, tensor.offset)
        return out + b"\0" * (-len(out) % 32) + self.data


def number(type: int, wanted: float) -> float:
    """Return the number of a type that is next to the wanted one."""
    if type in FLOATS:
        return float(wanted)
    bits = 8 * struct.calcsize(FORMATS[type])
    signed = FORMATS[type][1].islower()
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << min(bits, 63)) - 1)
    return int(max(least, min(most, wanted)))


def _value(type: int, value: Any) -> bytes:
    return _text(value) if type == TEXT else struct.pack(FORMATS[type], value)


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value
