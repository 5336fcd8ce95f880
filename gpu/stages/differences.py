"""Tensors of a device against the right ones, and how they differ, in words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from stages.check import Check

SHOWN = 5  # combinations of a case to name
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Where a GPU computes an angle itself: the share of all numbers that may differ, and by how many steps of the largest.
ANGLE_SHARE, ANGLE_STEPS = 1e-4, 2.0


class Differences:
    """The differences of a case, combination by combination: the first few are named, all are counted."""

    def __init__(self) -> None:
        self.compared = 0  # numbers
        self.rounded = 0  # numbers that are off by a rounding where that is allowed
        self.of = 0  # combinations
        self._found: list[str] = []

    @contextlib.contextmanager
    def combination(self, what: str) -> Iterator[None]:
        """Run one of many combinations; what is raised inside is kept for the end of the case."""
        self.of += 1
        try:
            yield
        except Exception as error:
            self._found.append(f"{what}: {type(error).__name__}: {error}")

    def require_same(self, got: Sequence[torch.Tensor], want: Sequence[torch.Tensor], *, angles: bool = False) -> None:
        """Require the same bits; with `angles`, roundings here and there are allowed."""
        for number, (one, other) in enumerate(zip(got, want, strict=True)):
            assert one.shape == other.shape, f"result {number}: {list(one.shape)}, expected {list(other.shape)}"
            assert one.dtype == other.dtype, f"result {number}: {one.dtype}, expected {other.dtype}"
            self.compared += other.numel()
            unlike = bits(one) != bits(other)
            count = int(unlike.sum())
            if count == 0:
                continue
            at = unlike.nonzero()[0].tolist()
            here = f"result {number}: {count} of {other.numel()} differ, the first at {at}"
            here += f": {one[tuple(at)].item()}, expected {other[tuple(at)].item()}"
            if not (angles and other.is_floating_point()):
                raise AssertionError(here)
            step = ANGLE_STEPS * torch.finfo(other.dtype).eps * float(other.double().abs().max())
            off = float((one.double() - other.double()).abs().max())
            if count > max(2.0, ANGLE_SHARE * other.numel()) or off > step:
                raise AssertionError(f"{here}; by {off} at most")
            self.rounded += count

    def require_near(self, got: torch.Tensor, want: torch.Tensor, tolerance: torch.Tensor | float) -> None:
        """Require that `got`, of any type, is within `tolerance` of a float64 `want`."""
        self.compared += want.numel()
        excess = float(((got.double().cpu() - want).abs() - tolerance).max()) if want.numel() else 0.0
        assert excess <= 0, f"off by {excess:.3e} more than allowed"

    def raise_any(self) -> None:
        if not self._found:
            return
        shown = "\n".join(self._found[:SHOWN])
        raise AssertionError(f"{len(self._found)} of {self.of} combinations:\n{shown}")


@contextlib.contextmanager
def differences(check: Check, name: str) -> Iterator[Differences]:
    """Run a case of many combinations, which fails at its end where one of them failed."""
    found = Differences()
    with check.case(name):
        yield found
        found.raise_any()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bits on the host, as whole numbers."""
    return tensor.detach().cpu().contiguous().view(_BITS[tensor.element_size()])


def refusal(call: Callable[[], object]) -> str:
    """Return the message of a call that must be refused."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("taken")
