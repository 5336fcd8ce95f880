"""Masters of the kept zone: chosen tokens of closed blocks, un-rotated, a row per token.

The Memory OS decides which tokens they are and where they stand (cpp/os/kept_zone.h).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import torch

_NAMES = ("kept_k", "kept_v")


@dataclasses.dataclass(frozen=True)
class KeptRows:
    """Rows of tokens in order of time, as a file has them."""

    k: torch.Tensor  # [L, Hkv, n, D] of the model's dtype, un-rotated
    v: torch.Tensor

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(zip(_NAMES, (self.k, self.v), strict=True))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> KeptRows | None:
        """Read what `tensors()` returned out of a file's tensors; None where it is not all there."""
        k, v = map(tensors.get, _NAMES)
        return cls(k, v) if k is not None and v is not None and k.shape == v.shape and k.ndim == 4 else None

    @staticmethod
    def owns(name: str) -> bool:
        """Return whether a file's tensor of that name is one of these."""
        return name in _NAMES


class KeptMasters:
    """N rows of k, v [L, Hkv, N, D] in the model's dtype. Each belongs to a token or is free.

    A token that moves is rotated from here. So it is rounded once when it is taken and once when it is put
    back, however often it moves.

    cos, sin [N, rotary_dim / 2] are those of no rotation, for `ops.gather_kv_`.
    """

    def __init__(
        self, shape: tuple[int, int, int, int], rotary_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """shape: [L, Hkv, N, D]."""
        rows = shape[2]
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.cos = torch.ones(rows, rotary_dim // 2, dtype=torch.float32, device=device)
        self.sin = torch.zeros(rows, rotary_dim // 2, dtype=torch.float32, device=device)
        self._row: dict[int, int] = {}
        self._free = list(range(rows))

    def copy(self) -> KeptMasters:
        """Return a copy that changes by itself."""
        other = copy.copy(self)
        other.k, other.v = self.k.clone(), self.v.clone()
        other._row, other._free = dict(self._row), list(self._free)
        return other

    def __len__(self) -> int:
        return len(self._row)

    @property
    def tokens(self) -> set[int]:
        """Tokens of the stream that have a row."""
        return set(self._row)

    def rows_of(self, tokens: Iterable[int]) -> torch.Tensor:
        """Return the tokens' rows, int64 [n] on the CPU. Raise KeyError for a token that has none."""
        return torch.tensor([self._row[token] for token in tokens], dtype=torch.int64, device="cpu")

    def hold(self, tokens: Sequence[int]) -> list[int]:
        """Give rows to these tokens and to no others. Return, in order, the tokens without written rows."""
        wanted = set(tokens)
        for token in [token for token in self._row if token not in wanted]:
            self._free.append(self._row.pop(token))
        new = [token for token in tokens if token not in self._row]
        for token in new:
            self._row[token] = self._free.pop()
        return new

    def empty(self) -> None:
        """Hold no token."""
        self.hold([])
        self.k.zero_()
        self.v.zero_()

    def in_order(self) -> KeptRows:
        """Return a copy on the CPU, in order of time."""
        rows = self.rows_of(sorted(self._row)).to(self.k.device)
        return KeptRows(self.k[:, :, rows].cpu().contiguous(), self.v[:, :, rows].cpu().contiguous())

    def write(self, tokens: Sequence[int], rows: KeptRows) -> None:
        """Write these tokens' rows of k, v [L, Hkv, n, D]. Tokens without a row are passed over."""
        at = [index for index, token in enumerate(tokens) if token in self._row]
        own = self.rows_of(tokens[index] for index in at).to(self.k.device)
        self.k[:, :, own] = rows.k[:, :, at].to(self.k)
        self.v[:, :, own] = rows.v[:, :, at].to(self.v)
