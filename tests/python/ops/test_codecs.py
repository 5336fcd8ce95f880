"""The integer codecs and the centres of FP8 keys, read from their bytes as docs/format.md has them, in numpy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everlong import ops
from everlong.config.archive import ArchiveConfig
from everlong.config.settings import types_of

BITS = {"int8": (8, 8), "int6": (6, 6), "int4": (4, 4), "k8v4": (8, 4), "k5v4": (5, 4)}
FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}

shapes = st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 70), st.integers(1, 130))
pages = st.sampled_from([1, 16, 64, 128])
seeds = st.integers(0, 2**31)
# Offsets of channels and widths around them: biased keys, constants, numbers at both ends of fp32.
offsets = st.sampled_from([0.0, 1.0, -30.0, 1e4, -1e30])
widths = st.sampled_from([0.0, 1e-30, 1.0, 50.0, 1e20])


class Bytes:
    """Reads arrays one behind the other."""

    def __init__(self, payload: torch.Tensor) -> None:
        self._bytes, self._at = payload.numpy(), 0

    def take(self, dtype: str, *shape: int) -> npt.NDArray[Any]:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._at += size
        return self._bytes[self._at - size : self._at].copy().view(dtype).reshape(shape)

    def codes(self, bits: int, heads: int, tokens: int, dim: int) -> npt.NDArray[Any]:
        rows = self.take("u1", heads, tokens, (dim * bits + 7) // 8)
        each = np.unpackbits(rows, axis=-1, bitorder="little")[..., : dim * bits].reshape(heads, tokens, dim, bits)
        return each @ (1 << np.arange(bits))

    def done(self) -> bool:
        return self._at == len(self._bytes)


class Numbers(NamedTuple):
    """Decoded numbers [heads, tokens, dim] in float32, and the step of each (0 for FP8)."""

    values: npt.NDArray[Any]
    steps: npt.NDArray[Any]


def of_steps(codes: npt.NDArray[Any], tables: npt.NDArray[Any], bits: int) -> Numbers:
    """`tables` broadcast with the codes."""
    steps = ((tables & 0xFFFF) << 16).astype(np.uint32).view(np.float32).astype(np.float64)
    least = (tables >> 16).astype(np.uint16).view(np.int16) * steps * 2.0 ** (bits - 8)
    return Numbers((codes * steps + least).astype(np.float32), np.broadcast_to(steps, codes.shape))


def bfloat16(halves: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return (halves.astype(np.uint32) << 16).view(np.float32)


def part_of(file: Bytes, codec: str, heads: int, tokens: int, dim: int) -> tuple[Numbers, Numbers]:
    """Read one part: the keys, then the values."""
    if codec in BITS:
        k_bits, v_bits = BITS[codec]
        k, v = file.codes(k_bits, heads, tokens, dim), file.codes(v_bits, heads, tokens, dim)
        k_tables, groups = file.take("u4", heads, 1, dim), (dim + 63) // 64
        v_tables = np.repeat(file.take("u4", heads, tokens, groups), 64, axis=-1)[..., :dim]
        return of_steps(k, k_tables, k_bits), of_steps(v, v_tables, v_bits)
    name = codec.removesuffix("-plain")
    k, v = (torch.from_numpy(file.take("u1", heads, tokens, dim)).view(FP8[name]).float().numpy() for _ in "kv")
    k_scales, v_scales = file.take("f4", heads, 1, dim), file.take("f4", heads, tokens, 1)
    keys = k * k_scales
    if name == codec:
        keys = keys + bfloat16(file.take("u2", heads, 1, dim))
    return Numbers(keys, np.zeros_like(k)), Numbers(v * v_scales, np.zeros_like(v))


def read(payload: torch.Tensor, codec: str, shape: tuple[int, int, int, int], page: int) -> list[Numbers]:
    """Return the keys and the values of a payload, [layers, heads, tokens, dim]."""
    layers, heads, tokens, dim = shape
    file = Bytes(payload)
    parts = [
        [part_of(file, codec, heads, min(page, tokens - first), dim) for _ in range(layers)]
        for first in range(0, tokens, page)
    ]
    assert file.done()
    return [
        Numbers(*(np.concatenate([np.stack([of[side][i] for of in layer]) for layer in parts], 2) for i in range(2)))
        for side in range(2)
    ]


def drawn(shape: tuple[int, int, int, int], seed: int, offset: float, width: float) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    means = offset * rng.standard_normal((2, shape[0], shape[1], 1, shape[3]))
    return list(torch.from_numpy(means + width * rng.standard_normal((2, *shape))).float())


@given(st.sampled_from([*BITS, *FP8, "e4m3-plain"]), shapes, pages, seeds, offsets, widths)
def test_numbers_are_what_the_format_says(
    codec: str, shape: tuple[int, int, int, int], page: int, seed: int, offset: float, width: float
) -> None:
    exact = drawn(shape, seed, offset, width)
    payload = ops.encode_kv(*exact, page, codec)
    assert payload.shape == (ops.payload_bytes(shape[2], page, shape[0], shape[1], shape[3], codec),)
    decoded = ops.decode_kv(payload, *shape, page, codec, torch.float32)
    for got, want, numbers in zip(decoded, read(payload, codec, shape, page), exact, strict=True):
        np.testing.assert_array_equal(got.numpy(), want.values)
        if codec in BITS:
            off = np.abs(got.double().numpy() - numbers.double().numpy())
            assert (off <= want.steps * 0.5001 + np.abs(numbers.double().numpy()) * 2.0**-22).all()


@given(st.sampled_from(sorted(BITS)), seeds, st.floats(-1e6, 1e6, width=32))
def test_a_constant_comes_back_nearly_as_it_is(codec: str, seed: int, constant: float) -> None:
    """A step is then no larger than what 15 bits of units leave of the constant's distance from 0."""
    k = torch.full((1, 1, 20, 24), constant)
    for got, bits in zip(
        ops.decode_kv(ops.encode_kv(k, k, 16, codec), 1, 1, 20, 24, 16, codec, torch.float32), BITS[codec], strict=True
    ):
        assert bool(((got - k).abs() <= abs(constant) * 2.0 ** (8 - bits - 15) + 2.0**-118).all())


@pytest.mark.parametrize("codec", ["e4m3", "e5m2"])
def test_centres_bring_biased_keys_nearer(codec: str) -> None:
    """Channels with an offset of 30 times their width: what the plain codes lose of it is most of the keys."""
    shape = (2, 2, 128, 64)
    k, v = drawn(shape, 0, 30.0, 1.0)
    errors = {}
    for name in (codec, f"{codec}-plain"):
        got = ops.decode_kv(ops.encode_kv(k, v, 64, name), *shape, 64, name, torch.float32)
        errors[name] = float((got[0] - k).square().mean())
        assert torch.equal(got[1], ops.decode_kv(ops.encode_kv(v, v, 64, name), *shape, 64, name, torch.float32)[1])
    assert errors[codec] < errors[f"{codec}-plain"] / 50


@pytest.mark.parametrize("bits", [8, 6, 5, 4])
def test_more_bits_are_nearer(bits: int) -> None:
    names = {8: "int8", 6: "int6", 5: "k5v4", 4: "int4"}
    shape = (1, 2, 200, 96)
    k, v = drawn(shape, 1, 3.0, 1.0)
    got = ops.decode_kv(ops.encode_kv(k, v, 64, names[bits]), *shape, 64, names[bits], torch.float32)[0]
    spread = [page.amax(2) - page.amin(2) for page in k.split(64, 2)]
    step = float(torch.stack(spread).mean()) / (2**bits - 1)
    # An error that is even over a step has a root mean square of step / 12^0.5.
    assert float((got - k).square().mean().sqrt()) == pytest.approx(step / 12**0.5, rel=0.15)


def test_the_setting_knows_every_codec() -> None:
    assert set(types_of(ArchiveConfig)["codec"].__args__) == set(ops.CODECS)
