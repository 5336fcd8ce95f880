"""The tables of a transform codec, from samples of a model's keys and values.

Keys, and values, of some layers that lie side by side are a group. A group has a mean, an orthogonal basis, one step,
and for each coefficient the table of frequencies that fits its spread. docs/format.md has the file.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

import safetensors.torch
import torch

_MOST_NUMBERS = 1536  # of a group and a token: wider groups code in fewer bytes, and take longer to decode
_VALUE_STEPS = 3.0  # steps of values are so many times those of keys, in their own mean deviation
_LEAST_CODE = 0.05  # mean magnitude of a coefficient's codes, below which it is left out
_UNIT, _MOST = 2.0**-15, 2**15 - 1  # of a basis
_REACH, _SYMBOLS, _TOTAL = 15, 32, 4096  # as in cpp/kv/include/everlong/kv/transform.h
_FEW = 0.02  # added to every count of a symbol, so that what was not seen costs much and not all

# k, v [layers, heads, tokens, head_dim] of texts, un-rotated, fp32, without sinks.
Samples = list[tuple[torch.Tensor, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Basis:
    """The basis of a group: what does not depend on steps."""

    keys: bool
    first_layer: int
    layers: int
    mean: torch.Tensor  # [n]
    basis: torch.Tensor  # [n, n], int16 in units of _UNIT: a row a coefficient, that of the largest variance first
    deviation: float  # of the whole of keys, or of values: the mean one of a number
    held_out: torch.Tensor  # [tokens, n]: coefficients of samples that the basis was not fitted to


def spans_of(layers: int, numbers: int) -> list[tuple[int, int]]:
    """Return (first layer, layers) of groups of about one width, for `numbers` numbers a layer and token."""
    groups = -(-layers // max(1, _MOST_NUMBERS // numbers))
    ends = [layers * group // groups for group in range(groups + 1)]
    return [(first, end - first) for first, end in itertools.pairwise(ends)]


def bases_of(fitted: Samples, held_out: Samples) -> list[Basis]:
    """Return the bases of a model. Frequencies are taken from `held_out`, which a basis was not fitted to."""
    layers, heads, _, dim = fitted[0][0].shape
    found = []
    for which in (0, 1):
        spread = torch.stack([_deviations(sample[which]) for sample in fitted]).mean()
        for first, count in spans_of(layers, heads * dim):
            rows, others = (
                torch.cat([_rows(sample[which], first, count) for sample in samples]) for samples in (fitted, held_out)
            )
            mean = rows.mean(0)
            _, vectors = torch.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
            basis = (vectors.T.flip(0) / _UNIT).round().clamp(-_MOST, _MOST).to(torch.int16)
            coefficients = (others - mean) @ (basis.float() * _UNIT).T
            found.append(Basis(which == 0, first, count, mean, basis, float(spread), coefficients))
    return found


def tables_file(bases: Iterable[Basis], step: float, weights: str, shape: tuple[int, int, int]) -> bytes:
    """Return the file of tables for a step of keys, in units of their mean deviation; `shape`: layers, heads, size."""
    counts: dict[int, torch.Tensor] = {}
    groups = []
    for basis in bases:
        size = step * basis.deviation * (1.0 if basis.keys else _VALUE_STEPS)
        codes = (basis.held_out / size).round()
        spread = codes.abs().mean(0)
        kept = spread >= _LEAST_CODE
        classes = (4 * spread[kept].clamp_min(1e-3).log2()).round().to(torch.int64)
        for one in set(classes.tolist()):
            seen = torch.bincount(_symbols(codes[:, kept][:, classes == one], _shift(one)), minlength=_SYMBOLS)
            counts[one] = counts.get(one, 0) + seen
        groups.append((basis, size, kept, classes))
    if not counts:
        counts[0] = torch.ones(_SYMBOLS, dtype=torch.int64)
    numbers = {one: number for number, one in enumerate(sorted(counts))}
    file = {
        "weights": torch.tensor(list(weights.encode()), dtype=torch.uint8),
        "shape": torch.tensor(shape, dtype=torch.int32),
        "tables": torch.tensor(
            [[_shift(one), *_frequencies(counts[one])] for one in sorted(counts)], dtype=torch.int16
        ),
    }
    for number, (basis, size, kept, classes) in enumerate(groups):
        of_group = {
            "span": torch.tensor([int(basis.keys), basis.first_layer, basis.layers], dtype=torch.int32),
            "mean": basis.mean.float(),
            "scales": torch.full_like(basis.mean, size),
            "basis": basis.basis[kept].contiguous(),
            "tables": torch.tensor([numbers[one] for one in classes.tolist()], dtype=torch.uint8),
        }
        file |= {f"group{number}.{name}": tensor for name, tensor in of_group.items()}
    return safetensors.torch.save(file)


def _rows(x: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Return the numbers of each token [tokens, n] of x [layers, heads, tokens, head_dim]: by layer, then by head."""
    return x[first : first + count].permute(2, 0, 1, 3).reshape(x.shape[2], -1)


def _deviations(x: torch.Tensor) -> torch.Tensor:
    """Return the mean deviation of a number from its mean over tokens: the root of the mean variance."""
    return x.var(2).mean().sqrt()


def _shift(one: int) -> int:
    """Return how many low bits of codes of a class are kept as they are: the rest have about 3 as mean magnitude."""
    return min(11, max(0, (one - 6) // 4))


def _symbols(codes: torch.Tensor, shift: int) -> torch.Tensor:
    high = torch.div(codes, 2**shift, rounding_mode="floor").to(torch.int64).flatten()
    return torch.where(high.abs() <= _REACH, high + _REACH, _SYMBOLS - 1)


def _frequencies(counts: torch.Tensor) -> list[int]:
    """Return frequencies that sum to 2^12. The escape has one; a symbol that is hardly ever seen may have none."""
    shares = (counts + _FEW) / (counts + _FEW).sum()
    whole = (shares * _TOTAL).round().to(torch.int64)
    whole[-1] = max(1, int(whole[-1]))
    whole[int(whole.argmax())] += _TOTAL - int(whole.sum())
    return [int(one) for one in whole]
