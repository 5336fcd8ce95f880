"""The tables of a transform codec, from samples of a model's keys and values.

Keys, and values, of some layers that lie side by side are a group. A group has a mean, a unit for each number, an
orthogonal basis of what is in these units, and for each coefficient the table of frequencies that fits its spread. All
coefficients have one step, so that an error costs the same wherever it is: units are small where what a model says
hangs on a number. docs/format.md has the file.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import safetensors.torch
import torch

_MOST_NUMBERS = 1536  # of a group and a token: wider groups code in fewer bytes, and take longer to decode
_OF_LAYER, _OF_ALL = 0.02, 1e-4  # shares of the mean sensitivity of a layer, and of all, that every head has at least
_LEAST_CODE = 0.05  # mean magnitude of a coefficient's codes, below which it is left out
_UNIT, _MOST = 2.0**-15, 2**15 - 1  # of a basis
_REACH, _SYMBOLS, _TOTAL = 15, 32, 4096  # as in cpp/kv/include/everlong/kv/transform.h
_FEW = 0.02  # added to every count of a symbol, so that what was not seen costs much and not all

# k, v [layers, heads, tokens, head_dim] of texts, un-rotated, fp32, without sinks.
Samples = list[tuple[torch.Tensor, torch.Tensor]]
# Of keys, of values: [layers, heads].
Sensitivities = tuple[torch.Tensor, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Basis:
    """The basis of a group: what does not depend on steps."""

    keys: bool
    first_layer: int
    layers: int
    mean: torch.Tensor  # [n]
    units: torch.Tensor  # [n]
    basis: torch.Tensor  # [n, n], int16 in units of _UNIT: a row a coefficient, that of the largest variance first
    held_out: torch.Tensor  # [tokens, n]: coefficients, in units, of samples that the basis was not fitted to


def spans_of(layers: int, numbers: int) -> list[tuple[int, int]]:
    """Return (first layer, layers) of groups of about one width, for `numbers` numbers a layer and token."""
    return even_spans(layers, -(-layers // max(1, _MOST_NUMBERS // numbers)))


def even_spans(layers: int, groups: int) -> list[tuple[int, int]]:
    """Return (first layer, layers) of so many groups of about one width."""
    ends = [layers * group // groups for group in range(groups + 1)]
    return [(first, end - first) for first, end in itertools.pairwise(ends)]


def bases_of(
    fitted: Samples, held_out: Samples, sensitivities: Sensitivities, spans: Sequence[tuple[int, int]] = ()
) -> list[Basis]:
    """Return the bases of a model. Frequencies are taken from `held_out`, which a basis was not fitted to.

    `spans` are groups of layers as `spans_of` gives them, where others are wanted than the model's own.
    """
    layers, heads, _, dim = fitted[0][0].shape
    found = []
    for which, units in enumerate(_units(fitted, sensitivities)):
        for first, count in spans or spans_of(layers, heads * dim):
            of_group = units[first : first + count].reshape(-1).repeat_interleave(dim)
            rows, others = (
                torch.cat([_rows(sample[which], first, count) for sample in samples]) / of_group
                for samples in (fitted, held_out)
            )
            mean = rows.mean(0)
            _, vectors = torch.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
            basis = codes_of(vectors.T.flip(0))
            coefficients = (others - mean) @ (basis.float() * _UNIT).T
            found.append(Basis(which == 0, first, count, mean * of_group, of_group, basis, coefficients))
    return found


def codes_of(basis: torch.Tensor) -> torch.Tensor:
    """Return an orthogonal basis as it is written: int16."""
    return (basis / _UNIT).round().clamp(-_MOST, _MOST).to(torch.int16)


def _units(fitted: Samples, sensitivities: Sensitivities) -> list[torch.Tensor]:
    """Return what an error is measured in, [layers, heads], of keys and of values: the mean deviation is 1 in it."""
    found = []
    every = torch.stack(sensitivities).mean()
    for one in sensitivities:
        found.append((one + _OF_LAYER * one.mean(1, keepdim=True) + _OF_ALL * every).clamp_min(1e-30).rsqrt())
    deviations = [
        torch.stack([_deviations(sample[which] / units[:, :, None, None]) for sample in fitted]).mean()
        for which, units in enumerate(found)
    ]
    return [units * torch.stack(deviations).mean() for units in found]


def tables_file(bases: Iterable[Basis], step: float, weights: str, shape: tuple[int, int, int]) -> bytes:
    """Return the file of tables for a step, in units of the mean deviation; `shape`: layers, heads, size."""
    counts: dict[int, torch.Tensor] = {}
    groups = []
    for basis in bases:
        codes = (basis.held_out / step).round()
        spread = codes.abs().mean(0)
        kept = spread >= _LEAST_CODE
        classes = (4 * spread[kept].clamp_min(1e-3).log2()).round().to(torch.int64)
        by_coefficient = codes.T[kept].to(torch.int32)
        for one in set(classes.tolist()):
            seen = torch.bincount(_symbols(by_coefficient[classes == one], _shift(one)), minlength=_SYMBOLS)
            counts[one] = counts.get(one, 0) + seen
        groups.append((basis, kept, classes))
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
    for number, (basis, kept, classes) in enumerate(groups):
        of_group = {
            "span": torch.tensor([int(basis.keys), basis.first_layer, basis.layers], dtype=torch.int32),
            "mean": basis.mean.float(),
            "scales": (step * basis.units).float(),
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
    high = codes.flatten() >> shift  # rounds down
    return torch.where(high.abs() <= _REACH, high + _REACH, _SYMBOLS - 1)


def _frequencies(counts: torch.Tensor) -> list[int]:
    """Return frequencies that sum to 2^12. The escape has one; a symbol that is hardly ever seen may have none."""
    shares = (counts + _FEW) / (counts + _FEW).sum()
    whole = (shares * _TOTAL).round().to(torch.int64)
    whole[-1] = max(1, int(whole[-1]))
    whole[int(whole.argmax())] += _TOTAL - int(whole.sum())
    return [int(one) for one in whole]
