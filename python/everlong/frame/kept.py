"""The masters of the zone "kept": chosen tokens of closed blocks, un-rotated, a row a token.

Which tokens they are and where they stand is the Memory OS's business (cpp/include/everlong/os/kept_zone.h).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import torch

_NAMES = ("kept_k", "kept_v")


@dataclasses.dataclass(frozen=True)
class KeptRows:
    """Rows of tokens in order of time, as a file has them."""

    k: torch.Tensor  # fp32 [L, Hkv, n, D], un-rotated
    v: torch.Tensor  # of the model's dtype

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(zip(_NAMES, (self.k, self.v), strict=True))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> KeptRows | None:
        """What `tensors()` gave, among others; None where it is not there whole."""
        k, v = map(tensors.get, _NAMES)
        return cls(k, v) if k is not None and v is not None and k.shape == v.shape and k.ndim == 4 else None

    @staticmethod
    def owns(name: str) -> bool:
        """Whether a tensor of that name in a file is one of these."""
        return name in _NAMES


class KeptMasters:
    """N rows of k, v [L, Hkv, N, D], each of a token or free. Keys are fp32: whenever a token moves it is rotated from
    here, so that rounding never adds up; values never turn, and have the model's dtype."""

    def __init__(
        self, layers: int, kv_heads: int, rows: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (layers, kv_heads, rows, head_dim)
        self.k = torch.zeros(shape, dtype=torch.float32, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self._row: dict[int, int] = {}
        self._free = list(range(rows))

    def copy(self) -> KeptMasters:
        """One that changes by itself."""
        layers, kv_heads, _, head_dim = self.k.shape
        other = KeptMasters(layers, kv_heads, 0, head_dim, self.v.dtype, self.v.device)
        other.k, other.v = self.k.clone(), self.v.clone()
        other._row, other._free = dict(self._row), list(self._free)
        return other

    def __len__(self) -> int:
        return len(self._row)

    @property
    def tokens(self) -> set[int]:
        """Of the stream, that have a row."""
        return set(self._row)

    def rows_of(self, tokens: Iterable[int]) -> torch.Tensor:
        """int64 [n] on the CPU; KeyError for a token that has none."""
        return torch.tensor([self._row[token] for token in tokens], dtype=torch.int64, device="cpu")

    def hold(self, tokens: Sequence[int]) -> list[int]:
        """From now on these have rows; the result, in order, are those whose rows are still to be written."""
        wanted = set(tokens)
        for token in [token for token in self._row if token not in wanted]:
            self._free.append(self._row.pop(token))
        new = [token for token in tokens if token not in self._row]
        for token in new:
            self._row[token] = self._free.pop()
        return new

    def in_order(self) -> KeptRows:
        """A copy on the CPU, in order of time."""
        rows = self.rows_of(sorted(self._row)).to(self.k.device)
        return KeptRows(self.k[:, :, rows].cpu().contiguous(), self.v[:, :, rows].cpu().contiguous())

    def write(self, tokens: Sequence[int], rows: KeptRows) -> None:
        """These tokens' rows of k, v [L, Hkv, n, D]; tokens that are not held are passed over."""
        at = [index for index, token in enumerate(tokens) if token in self._row]
        own = self.rows_of(tokens[index] for index in at).to(self.k.device)
        self.k[:, :, own] = rows.k[:, :, at].to(self.k)
        self.v[:, :, own] = rows.v[:, :, at].to(self.v)
