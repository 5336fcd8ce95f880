"""The kv operators against transformers' own rotation in float64, and as citizens of torch: schema, fake, compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as rotate_llama

from everlong import ops
from support import tiny_model
from support.operators import Rope, keys, make_frame, operator_calls, phase, placements_of_block

ULP = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}  # of 1.0
# Half a step of a codec: of a number, and of its group's largest where the format is subnormal.
HALF_STEP = {"e4m3": (2.0**-4, 2.0**-10 / 448), "e5m2": (2.0**-3, 2.0**-17 / 57344)}
BITS = {"int8": (8, 8), "int6": (6, 6), "int4": (4, 4), "k8v4": (8, 4), "k5v4": (5, 4)}  # of keys and of values


def codec_error(codec: str, numbers: torch.Tensor, largest: torch.Tensor, *, keys: bool) -> torch.Tensor:
    """Return what the codec may change in numbers whose groups have these largest magnitudes."""
    if codec in BITS:  # half a step of at most twice the largest, in 8 bits rounded up
        return largest.expand_as(numbers) * 1.02 / (2 ** BITS[codec][0 if keys else 1] - 1)
    relative, absolute = HALF_STEP[codec.removesuffix("-plain")]
    centred = keys and not codec.endswith("-plain")
    magnitudes = 1.01 * largest.expand_as(numbers) if centred else numbers.abs()
    return torch.maximum(magnitudes * relative, largest * absolute)


LAST_POSITION = 10_000_000


ropes = st.builds(
    Rope,
    rotary_dim=st.sampled_from([2, 8, 30, 64]),
    theta=st.sampled_from([1e4, 1e6]),
    factor=st.sampled_from([1.0, 8.0, 32.0]),
    attention_scaling=st.sampled_from([1.0, 1.1386294, 1.3465736]),
    layout=st.sampled_from(["half", "glm", "cohere"]),
)
positions_lists = st.lists(st.integers(0, LAST_POSITION), min_size=1, max_size=80)
seeds = st.integers(0, 2**31)


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same numbers with other strides, as views of a caller's buffers have them."""
    if layout == "token-major":  # [B, T, H, D] in memory, as projections leave it
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "sliced":
        return torch.nn.functional.pad(tensor, (0, 0, 3, 2, 1, 0))[:, 1:, 3:-2]
    if layout == "every other number":
        return tensor.repeat_interleave(2, -1)[..., ::2]
    return tensor.contiguous()


layouts = st.sampled_from(["contiguous", "token-major", "sliced", "every other number"])


def assert_within(got: torch.Tensor, want: torch.Tensor, tolerance: torch.Tensor | float) -> None:
    excess = (got.double() - want).abs() - tolerance
    assert bool((excess <= 0).all()), f"off by {excess.max().item():.3e} more than allowed"


def row_norm(k: torch.Tensor) -> torch.Tensor:
    return k.norm(dim=-1, keepdim=True)


@given(ropes, positions_lists, seeds, st.integers(1, 2), st.integers(1, 3), st.sampled_from([0, 2, 18]), layouts)
def test_rerotated_derotated_keys_are_the_keys_of_the_new_position(
    rope: Rope, positions: list[int], seed: int, batch: int, heads: int, rest: int, layout: str
) -> None:
    old = torch.tensor(positions)
    new = old.flip(0) // 3 + 7
    plain = keys(seed, batch, heads, len(positions), rope.rotary_dim + rest)
    cos, sin = rope.cos_sin(old)
    rotated = rope.rotated(plain, old).float()
    values = keys(seed + 1, batch, heads, len(positions), rope.rotary_dim + rest).float()

    un_rotated, same_values = ops.derotate_kv(
        laid_out(rotated, layout), laid_out(values, layout), cos, sin, rope.interleaved
    )
    assert_within(un_rotated, plain, 2e-6 * row_norm(plain))
    assert torch.equal(same_values, values)
    again, same_values = ops.rerotate_kv(
        laid_out(un_rotated, layout), values, new, rope.inv_freq, rope.attention_scaling, rope.interleaved
    )
    want = rope.rotated(plain, new)
    assert_within(again, want, 2e-6 * row_norm(want))
    assert torch.equal(same_values, values)


@given(ropes, positions_lists, seeds, st.sampled_from([torch.bfloat16, torch.float16]), layouts)
def test_half_precision_keys_are_rounded_once(
    rope: Rope, positions: list[int], seed: int, dtype: torch.dtype, layout: str
) -> None:
    """Of the stored number as it is: one unit in the last place, and fp32's error where a pair's terms cancel."""
    at = torch.tensor(positions)
    given_keys = laid_out(keys(seed, 1, 2, len(positions), rope.rotary_dim + 4).to(dtype), layout)

    turned, _ = ops.rerotate_kv(given_keys, given_keys, at, rope.inv_freq, rope.attention_scaling, rope.interleaved)
    assert turned.dtype == dtype
    want = rope.rotated(given_keys, at)
    assert_within(turned, want, ULP[dtype] * want.abs() + 2e-6 * row_norm(want) + 2.0**-24)

    cos, sin = rope.cos_sin(at)
    back, _ = ops.derotate_kv(given_keys, given_keys, cos, sin, rope.interleaved)
    # The inverse rotation is the rotation by the opposite angle, over m twice.
    want = rope.rotated(given_keys, -at)
    want[..., : rope.rotary_dim] /= rope.attention_scaling**2
    assert_within(back, want, ULP[dtype] * want.abs() + 2e-6 * row_norm(want) + 2.0**-24)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_cos_and_sin_of_any_type_and_shape(dtype: torch.dtype) -> None:
    rope = Rope(8, 1e4, 1.0, 1.25, "half")
    at = torch.arange(5)
    k = keys(0, 2, 3, 5, 12).float()
    cos, sin = (x.to(dtype) for x in rope.cos_sin(at))
    whole = ops.derotate_kv(k, k, cos, sin)[0]
    assert torch.equal(ops.derotate_kv(k, k, cos[0], sin[0])[0], whole)
    assert torch.equal(ops.derotate_kv(k, k, cos.expand(2, 5, 8), sin.expand(2, 5, 8))[0], whole)
    c, s = cos[0, :, :4].double(), sin[0, :, :4].double()
    x, y = k[..., :4].double(), k[..., 4:8].double()
    want = torch.cat(((x * c + y * s) / (c * c + s * s), (y * c - x * s) / (c * c + s * s), k[..., 8:].double()), -1)
    assert_within(whole, want, 1e-6 * row_norm(want))


def test_each_entry_of_a_batch_has_its_own_positions() -> None:
    rope = Rope(8, 1e4, 1.0, 1.0, "half")
    plain = keys(1, 2, 3, 5, 8)
    at = torch.tensor([[0, 1, 2, 3, 4], [70, 71, 72, 90, 91]])
    rotated = torch.cat([rope.rotated(plain[b : b + 1], at[b]) for b in range(2)]).float()
    cos, sin = (torch.cat(parts) for parts in zip(*(rope.cos_sin(at[b]) for b in range(2)), strict=True))
    assert_within(ops.derotate_kv(rotated, rotated, cos, sin)[0], plain, 1e-6 * row_norm(plain))


@pytest.mark.parametrize(
    "view",
    [
        lambda k: k[:, :, 3:, :],
        lambda k: k[:, ::2],
        lambda k: k.transpose(1, 2).contiguous().transpose(1, 2),  # [B, T, H, D] in memory, as projections leave it
        lambda k: k[..., ::2],
        lambda k: k[:, :1].expand(-1, 4, -1, -1),
        lambda k: k[:, :, :0],
    ],
)
def test_any_strides(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    k = view(keys(2, 2, 4, 6, 16).float())
    rope = Rope(8, 1e4, 1.0, 1.0, "half")
    at = torch.arange(k.shape[2]) + 100
    cos, sin = rope.cos_sin(at)
    for strided, plain in (
        (ops.derotate_kv(k, k, cos, sin), ops.derotate_kv(k.contiguous(), k.contiguous(), cos, sin)),
        (ops.rerotate_kv(k, k, at, rope.inv_freq), ops.rerotate_kv(k.contiguous(), k.contiguous(), at, rope.inv_freq)),
    ):
        assert torch.equal(strided[0], plain[0])
        assert torch.equal(strided[1], k)
        assert strided[0].is_contiguous()
        assert strided[1].is_contiguous()


# --- the frame


@given(
    ropes,
    seeds,
    st.sampled_from(ops.CODECS),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.integers(1, 90),
    st.sampled_from([16, 64]),
)
def test_restore_gives_back_what_was_archived(
    rope: Rope, seed: int, codec: str, dtype: torch.dtype, tokens: int, page_tokens: int
) -> None:
    dim = rope.rotary_dim + 6
    source = make_frame(rope, seed, slots=100, dim=dim, first=1_000_000, dtype=dtype)
    target = make_frame(rope, seed + 2, slots=120, dim=dim, dtype=dtype)
    before = target.clone()
    payload = ops.archive_kv(*source.buffers, 5, tokens, page_tokens, codec, rope.interleaved)
    assert payload.dtype == torch.uint8
    assert payload.shape == (ops.payload_bytes(tokens, page_tokens, 3, 2, dim, codec),)
    places = placements_of_block(tokens, page_tokens, codec, dim, slot=20, position=333)
    ops.restore_kv(
        payload,
        places,
        *target.buffers,
        page_tokens,
        codec,
        rope.inv_freq,
        rope.attention_scaling,
        rope.interleaved,
    )

    placed = slice(20, 20 + tokens)
    plain, values = source.plain[:, :, 5 : 5 + tokens], source.v[:, :, 5 : 5 + tokens].double()
    at = torch.arange(tokens) + 333
    want = rope.rotated(plain, at)
    # Two roundings of the frame's type (into the source, into the target), one of the codec.
    rounding = row_norm(want) * (3 * ULP[dtype] / 2 + 2e-6)
    if codec == "bf16":
        rounding = rounding + row_norm(want) * ULP[torch.bfloat16] / 2
    lossy = codec not in ("fp32", "bf16")
    if lossy:
        largest = torch.cat([p.abs().amax(2, keepdim=True).expand_as(p) for p in plain.split(page_tokens, 2)], 2)
        error = codec_error(codec, plain, largest, keys=True) * 1.05
        rounding = rounding + 2 * rope.attention_scaling * error.amax(-1, keepdim=True)
    assert_within(target.k[:, :, placed], want, rounding)
    if lossy:
        error = codec_error(codec, values, values.abs().amax(-1, keepdim=True), keys=False)
        bound = error * 1.001 + ULP[dtype] * (values.abs() + error) + 2.0**-24
        assert_within(target.v[:, :, placed], values, bound)
    elif codec == "fp32" or dtype == torch.bfloat16:
        assert torch.equal(target.v[:, :, placed].double(), values)
    else:
        assert_within(target.v[:, :, placed], values, values.abs() * ULP[torch.bfloat16] / 2)
    for got, want_phase in zip((target.cos, target.sin), phase(rope, at), strict=True):
        assert_within(got[placed], want_phase.double(), 2e-7)

    untouched = torch.ones(120, dtype=torch.bool)
    untouched[placed] = False
    assert torch.equal(target.k[:, :, untouched], before.k[:, :, untouched])
    assert torch.equal(target.v[:, :, untouched], before.v[:, :, untouched])
    assert torch.equal(target.cos[untouched], before.cos[untouched])


@given(ropes, seeds, st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.integers(-3000, 3000))
def test_shift_equals_rotation_from_scratch(
    rope: Rope, seed: int, source: int, target: int, count: int, delta: int
) -> None:
    count = min(count, 100 - max(source, target))
    frame = make_frame(rope, seed, slots=100, dim=rope.rotary_dim + 2, first=4000, dtype=torch.float32)
    old = frame.clone()
    ops.shift_kv_(*frame.buffers, source, target, count, delta, rope.inv_freq, rope.interleaved)

    origin, at = torch.arange(100), torch.arange(100) + 4000
    origin[target : target + count] = torch.arange(source, source + count)
    at[target : target + count] = torch.arange(source, source + count) + 4000 + delta
    want = rope.rotated(old.plain[:, :, origin], at)
    assert_within(frame.k, want, 2e-6 * row_norm(want))
    assert torch.equal(frame.v, old.v[:, :, origin])
    for got, want_phase in zip((frame.cos, frame.sin), phase(rope, at), strict=True):
        assert_within(got, want_phase.double(), 5e-7)


def test_shifting_again_and_again_keeps_the_phase_of_the_key() -> None:
    """The key and its phase drift together: what matters is that un-rotating still gives the key before RoPE."""
    rope = Rope(64, 1e4, 1.0, 1.1386294, "half")
    frame = make_frame(rope, 0, slots=80, dim=64, first=30_000, dtype=torch.float32)
    for _ in range(30):
        ops.shift_kv_(*frame.buffers, 0, 0, 80, -999, rope.inv_freq)
    payload = ops.archive_kv(*frame.buffers, 0, 80, 80, "fp32")
    stored = payload.view(torch.float32).view(3, 2, 2, 80, 64)[:, 0]  # [L, K or V, Hkv, T, D]
    assert_within(stored, frame.plain, 1e-5 * row_norm(frame.plain))


def test_a_window_of_larger_buffers_is_a_frame() -> None:
    rope = Rope(8, 1e4, 1.0, 1.0, "half")
    whole = make_frame(rope, 3, slots=40, dim=8, dtype=torch.float32)
    window = (whole.k[1:, :, 10:30], whole.v[1:, :, 10:30], whole.cos[10:30], whole.sin[10:30])
    copied = tuple(t.contiguous() for t in window)
    assert torch.equal(ops.archive_kv(*window, 2, 17, 16, "e4m3"), ops.archive_kv(*copied, 2, 17, 16, "e4m3"))
    out = torch.full((ops.payload_bytes(17, 16, 2, 2, 8, "e4m3"),), 0xEE, dtype=torch.uint8)
    assert ops.archive_kv(*window, 2, 17, 16, "e4m3", out=out) is out
    assert torch.equal(out, ops.archive_kv(*copied, 2, 17, 16, "e4m3"))
    before = whole.clone()
    ops.shift_kv_(*window, 5, 0, 15, -5, rope.inv_freq)
    assert torch.equal(whole.k[:1], before.k[:1])
    assert torch.equal(whole.k[:, :, 30:], before.k[:, :, 30:])
    assert torch.equal(whole.v[1:, :, 10:25], before.v[1:, :, 15:30])


@given(ropes, seeds, st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), st.data())
def test_gather_is_copies_that_were_turned_one_by_one(
    rope: Rope, seed: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    """Out of a frame and into another: the bits of `derotate_kv` and of `rerotate_kv` over copies of the rows."""
    dim = rope.rotary_dim + 2
    frame = make_frame(rope, seed, slots=60, dim=dim, first=4000, dtype=dtype)
    old = frame.clone()
    count = data.draw(st.integers(0, 40))
    sources = torch.tensor(data.draw(st.permutations(range(60)))[:count], dtype=torch.int64)
    if count > 4 and data.draw(st.booleans()):  # runs, and a row that is taken twice
        sources = sources.sort().values
        sources[1] = sources[0]
    rows = torch.tensor(data.draw(st.permutations(range(50)))[:count], dtype=torch.int64)
    masters = make_frame(rope, seed + 1, slots=50, dim=dim, dtype=dtype)
    masters.cos.fill_(1)
    masters.sin.fill_(0)
    before = masters.clone()
    untouched = torch.ones(50, dtype=torch.bool)
    untouched[rows] = False

    none = torch.zeros(count, dtype=torch.int64)
    ops.gather_kv_(*frame.buffers, sources, *masters.buffers, rows, none, rope.inv_freq, 1.0, rope.interleaved)
    full = [
        x[sources].repeat_interleave(2, -1) if rope.interleaved else torch.cat((x[sources], x[sources]), -1)
        for x in (old.cos, old.sin)
    ]
    plain, values = ops.derotate_kv(old.k[:, :, sources], old.v[:, :, sources], *full, rope.interleaved)
    assert torch.equal(masters.k[:, :, rows], plain)
    assert torch.equal(masters.v[:, :, rows], values)
    assert (masters.cos == 1).all()
    assert (masters.sin == 0).all()
    for got, had in zip(masters.buffers, before.buffers, strict=True):
        at = -2 if got.dim() == 4 else 0
        assert torch.equal(got.movedim(at, 0)[untouched], had.movedim(at, 0)[untouched])
    for got, had in zip(frame.buffers, old.buffers, strict=True):
        assert torch.equal(got, had)

    targets = torch.arange(count) + 15
    positions = torch.tensor(
        data.draw(st.lists(st.integers(0, 2**20), min_size=count, max_size=count)), dtype=torch.int64
    )
    scaling = rope.attention_scaling
    ops.gather_kv_(*masters.buffers, rows, *frame.buffers, targets, positions, rope.inv_freq, scaling, rope.interleaved)
    turned, values = ops.rerotate_kv(plain, values, positions, rope.inv_freq, scaling, rope.interleaved)
    assert torch.equal(frame.k[:, :, targets], turned)
    assert torch.equal(frame.v[:, :, targets], values)
    for got, want in zip((frame.cos, frame.sin), phase(rope, positions), strict=True):
        assert_within(got[targets], want.double(), 2e-7)


@given(ropes, seeds, st.integers(0, 30))
def test_gather_from_one_rotation_to_another_turns_once(rope: Rope, seed: int, count: int) -> None:
    source = make_frame(rope, seed, slots=60, dim=rope.rotary_dim, first=4000, dtype=torch.float32)
    target = make_frame(rope, seed + 1, slots=60, dim=rope.rotary_dim, dtype=torch.float32)
    slots, positions = torch.randperm(60)[:count], torch.randint(0, 5000, (count,))
    ops.gather_kv_(
        *source.buffers,
        slots,
        *target.buffers,
        torch.arange(count) + 7,
        positions,
        rope.inv_freq,
        rope.attention_scaling,
        rope.interleaved,
    )
    want = rope.rotated(source.plain[:, :, slots], positions)
    assert_within(target.k[:, :, 7 : 7 + count], want, 2e-6 * row_norm(want))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"sources": [0, 10]}, "sources"),
        ({"targets": [0, 10]}, "targets"),
        ({"targets": [3, 3]}, "targets: 3 comes twice"),
        ({"targets": [3]}, "targets"),
        ({"positions": [0, -1]}, "positions"),
        ({"to": "itself"}, "share bytes"),
        ({"to": "other type"}, "differ in element type"),
        ({"to": "other heads"}, "differ in element type, layers, KV heads"),
        ({"inv_freq": 3}, "inv_freq"),
    ],
)
def test_gather_refuses_what_does_not_fit_and_writes_nothing(changed: dict[str, Any], named: str) -> None:
    rope = Rope(8, 1e4, 1.0, 1.0, "half")
    source = make_frame(rope, 0, slots=10, dim=8, dtype=torch.float32)
    kind = torch.bfloat16 if changed.get("to") == "other type" else torch.float32
    target = source if changed.get("to") == "itself" else make_frame(rope, 1, slots=10, dim=8, dtype=kind)
    before = target.clone()
    buffers = list(target.buffers)
    if changed.get("to") == "other heads":
        buffers[:2] = (x[:, :1] for x in buffers[:2])
    rows = {name: torch.tensor(changed.get(name, [1, 2])) for name in ("sources", "targets", "positions")}
    with pytest.raises(RuntimeError, match=named):
        ops.gather_kv_(
            *source.buffers,
            rows["sources"],
            *buffers,
            rows["targets"],
            rows["positions"],
            rope.inv_freq[: changed.get("inv_freq", 4)],
        )
    for got, had in zip(target.buffers, before.buffers, strict=True):
        assert torch.equal(got, had)


# --- codes

FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}


def fp8_table(codec: str) -> np.ndarray[Any, Any]:
    """The magnitudes of codes 0, 1, 2 ... in float64 by the format's definition, finite ones only."""
    fraction_bits, bias = {"e4m3": (3, 7), "e5m2": (2, 15)}[codec]
    codes = np.arange({"e4m3": 0x7F, "e5m2": 0x7C}[codec])
    fraction, exponent = codes % 2**fraction_bits / 2**fraction_bits, codes >> fraction_bits
    return np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))


def nearest_codes(values: np.ndarray[Any, Any], codec: str) -> np.ndarray[Any, Any]:
    """The code of the nearest number in float64, ties to the even code; beyond the largest, the largest."""
    table = fp8_table(codec)
    magnitude = np.minimum(np.abs(values), table[-1])
    above = np.clip(np.searchsorted(table, magnitude), 1, len(table) - 1)
    lower, upper = magnitude - table[above - 1], table[above] - magnitude
    take_lower = (lower < upper) | ((lower == upper) & (above % 2 == 1))
    return np.where(take_lower, above - 1, above) + np.where(np.signbit(values), 0x80, 0)


@pytest.mark.parametrize("codec", ["e4m3", "e5m2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_number_of_a_16_bit_type_gets_the_nearest_code(codec: str, dtype: torch.dtype) -> None:
    """Values beside the format's largest number, which makes the scale 1; keys beside it in every channel."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    fits = every[every.double().abs() <= LARGEST[codec]]
    numbers = torch.nn.functional.pad(fits, (0, -fits.numel() % 63)).view(-1, 63)
    largest = torch.full((numbers.shape[0], 1), LARGEST[codec]).to(dtype)
    values = torch.cat((largest, numbers), 1)[None, None]
    by_channel = values.mT.contiguous()  # [1, 1, 64, N]: token 0 holds the largest of every channel
    want = nearest_codes(values.double().numpy(), codec)

    tokens, dim = values.shape[2:]
    codes = ops.encode_kv(torch.zeros_like(values), values, 128, f"{codec}-plain")
    got, scales = [], []
    for first in range(0, tokens, 128):
        held = min(128, tokens - first)
        page = codes[ops.payload_bytes(first, 128, 1, 1, dim, f"{codec}-plain") :]
        got.append(page[held * dim : 2 * held * dim].view(held, dim))
        scales.append(page[2 * held * dim + 4 * dim :][: 4 * held].clone().view(torch.float32))
    assert bool((torch.cat(scales) == 1).all())
    assert np.array_equal(torch.cat(got).numpy(), want[0, 0])

    tokens, dim = by_channel.shape[2:]
    codes = ops.encode_kv(by_channel, torch.zeros_like(by_channel), 64, f"{codec}-plain")
    assert np.array_equal(codes[: tokens * dim].view(tokens, dim).numpy(), want[0, 0].T)
    # torch's own cast, defined where it does not saturate.
    assert np.array_equal(values.float().to(FP8[codec]).view(torch.uint8)[0, 0].numpy(), want[0, 0])


@given(
    st.sampled_from(ops.CODECS),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 70), st.integers(1, 40)),
    st.sampled_from([1, 16, 64]),
    st.booleans(),
    seeds,
)
def test_decode_gives_back_what_was_encoded(
    codec: str, dtype: torch.dtype, shape: tuple[int, int, int, int], page_tokens: int, strided: bool, seed: int
) -> None:
    layers, heads, tokens, dim = shape
    k, v = (keys(seed + i, layers, tokens, heads, dim).to(dtype).transpose(1, 2) for i in range(2))
    if not strided:
        k, v = k.contiguous(), v.contiguous()
    payload = ops.encode_kv(k, v, page_tokens, codec)
    assert payload.shape == (ops.payload_bytes(tokens, page_tokens, layers, heads, dim, codec),)
    assert torch.equal(payload, ops.encode_kv(k.contiguous(), v.contiguous(), page_tokens, codec))
    decoded = ops.decode_kv(payload, *shape, page_tokens, codec, dtype)
    for held, got, is_keys in zip((k, v), decoded, (True, False), strict=True):
        assert got.shape == held.shape
        assert got.dtype == dtype
        if codec == "fp32" or (codec == "bf16" and dtype == torch.bfloat16):
            assert torch.equal(got, held)
        elif codec == "bf16":
            assert_within(got, held.double(), held.double().abs() * ULP[torch.bfloat16])
        else:
            exact = held.double()
            largest = torch.tensor(max(exact.abs().flatten().tolist(), default=0.0)).double()
            error = codec_error(codec, exact, largest, keys=is_keys) * 1.001
            assert_within(got, exact, error + (exact.abs() + error) * ULP[dtype] + 2.0**-24)


@given(ropes, positions_lists, seeds)
def test_frequencies_in_fp32_are_widened(rope: Rope, positions: list[int], seed: int) -> None:
    """As transformers has them. The angles are those of the widened numbers, by the same arithmetic."""
    at, narrow = torch.tensor(positions), rope.inv_freq.float()
    k = keys(seed, 1, 2, len(positions), rope.rotary_dim + 2).float()
    for got, want in zip(
        ops.rerotate_kv(k, k, at, narrow, rope.attention_scaling, rope.interleaved),
        ops.rerotate_kv(k, k, at, narrow.double(), rope.attention_scaling, rope.interleaved),
        strict=True,
    ):
        assert torch.equal(got, want)


def test_shifted_and_restored_keys_take_frequencies_in_fp32() -> None:
    rope = Rope(8, 1e4, 1.0, 1.25, "half")
    frame = make_frame(rope, 0, slots=40, dim=10, dtype=torch.float32)
    payload = ops.archive_kv(*frame.buffers, 0, 20, 16, "bf16")
    places = placements_of_block(20, 16, "bf16", 10, slot=18, position=77)
    narrow = rope.inv_freq.float()
    frames = []
    for inv_freq in (narrow, narrow.double()):
        moved = frame.clone()
        ops.shift_kv_(*moved.buffers, 10, 0, 20, -10, inv_freq)
        ops.restore_kv(payload, places, *moved.buffers, 16, "bf16", inv_freq, 1.25)
        frames.append(moved)
    for got, want in zip(frames[0].buffers, frames[1].buffers, strict=True):
        assert torch.equal(got, want)
    assert not torch.equal(frames[0].k, frame.k)


def test_the_model_s_own_frequencies_are_taken_as_they_are() -> None:
    """Keys of a model of transformers, moved by its own table and rotary embedding alone."""
    model = tiny_model()
    rotary = model.model.rotary_emb
    k = keys(0, 1, 2, 9, 16).float()
    old, new = torch.arange(9), torch.arange(9) + 500
    cos, sin = rotary(k, old[None])
    plain, _ = ops.derotate_kv(rotate_llama(k, k, cos, sin)[1], k, cos, sin)
    moved, _ = ops.rerotate_kv(plain, k, new, rotary.inv_freq, rotary.attention_scaling)
    assert_within(moved, rotate_llama(k, k, *rotary(k, new[None]))[1].double(), 1e-4 * row_norm(k).double())


def test_without_frequencies_a_head_turns_as_roformer_s() -> None:
    rope = Rope(16, 1e4, 1.0, 1.0, "half")
    at = torch.arange(40) + 100_000
    k = keys(0, 2, 3, 40, 16).float()
    for got, want in zip(ops.rerotate_kv(k, k, at), ops.rerotate_kv(k, k, at, rope.inv_freq), strict=True):
        assert_within(got, want.double(), 1e-6 * row_norm(k))
    for got, want in zip(
        torch.ops.everlong.rerotate_kv(k, k, at, interleaved=True),
        ops.rerotate_kv(k, k, at, rope.inv_freq, interleaved=True),
        strict=True,
    ):
        assert_within(got, want.double(), 1e-6 * row_norm(k))


def test_encode_is_archive_without_rotation() -> None:
    rope = Rope(8, 1e4, 1.0, 1.25, "half")
    frame = make_frame(rope, 0, slots=40, dim=10, dtype=torch.float32)
    none = torch.empty(40, 0)
    for codec in ops.CODECS:
        archived = ops.archive_kv(frame.k, frame.v, none, none, 0, 40, 16, codec)
        assert torch.equal(ops.encode_kv(frame.k, frame.v, 16, codec), archived)


# --- as operators of torch


@pytest.mark.parametrize("name", sorted(operator_calls()))
def test_operator_is_well_formed(name: str) -> None:
    operator, *arguments = operator_calls()[name]
    assert set(torch.library.opcheck(operator, *arguments).values()) == {"SUCCESS"}


def test_all_operators_compile_into_one_graph() -> None:
    rope = Rope(8, 1e4, 1.0, 1.25, "half")
    inv_freq = rope.inv_freq

    def round_trip(
        k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: torch.Tensor, places: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        payload = ops.archive_kv(k, v, cos, sin, 0, 20, 16, "bf16")
        ops.shift_kv_(k, v, cos, sin, 10, 0, 20, -10, inv_freq)
        ops.restore_kv(payload, places, k, v, cos, sin, 16, "bf16", inv_freq, 1.25)
        full_cos, full_sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
        plain, values = ops.derotate_kv(k * 2, v, full_cos, full_sin)
        encoded = ops.encode_kv(plain, values, 16, "e5m2")
        plain, values = ops.decode_kv(encoded, 3, 2, 40, 10, 16, "e5m2", torch.float32)
        return ops.rerotate_kv(plain, values, at, inv_freq, 1.25)

    frame = make_frame(rope, 0, slots=40, dim=10, dtype=torch.float32)
    at = torch.arange(40) + 5
    places = placements_of_block(20, 16, "bf16", 10, slot=18, position=77)
    eager_frame, compiled_frame = frame.clone(), frame.clone()
    eager = round_trip(*eager_frame.buffers, at, places)
    compiled = torch.compile(round_trip, fullgraph=True, backend="aot_eager")(*compiled_frame.buffers, at, places)
    for got, want in zip((*compiled, *compiled_frame.buffers), (*eager, *eager_frame.buffers), strict=True):
        assert torch.equal(got, want)
    assert not torch.equal(eager_frame.k, frame.k)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    rope = Rope(64, 1e4, 1.0, 1.0, "half")
    frame = make_frame(rope, 0, slots=600, dim=64, dtype=torch.bfloat16)
    threads = torch.get_num_threads()
    try:
        payloads = []
        for count in (1, 2):
            torch.set_num_threads(count)
            payloads.append(ops.archive_kv(*frame.buffers, 0, 600, 64, "e4m3"))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*payloads)


# --- what does not fit


def bad_calls() -> dict[str, tuple[Callable[..., object], tuple[Any, ...], str]]:
    rope = Rope(8, 1e4, 1.0, 1.0, "half")
    frame = make_frame(rope, 0, slots=40, dim=10, dtype=torch.float32)
    k, v, cos, sin = frame.buffers
    at = torch.arange(40)
    full = rope.cos_sin(at)
    freq = rope.inv_freq
    payload = ops.archive_kv(*frame.buffers, 0, 20, 16, "e4m3")
    places = placements_of_block(20, 16, "e4m3", 10, slot=4, position=9)

    def changed(row: int, column: int, value: int) -> torch.Tensor:
        copy = places.clone()
        copy[row, column] = value
        return copy

    def restore(places: torch.Tensor) -> tuple[Any, ...]:
        return payload, places, *frame.buffers, 16, "e4m3", freq

    not_finite = k.clone()
    not_finite[1, 0, 7, 3] = float("nan")
    derotate, rerotate, shift, archive = ops.derotate_kv, ops.rerotate_kv, ops.shift_kv_, ops.archive_kv
    negative, far = at.clone(), at.clone()
    negative[3], far[39] = -1, 2**30
    decode = ops.decode_kv
    return {
        "k of integers": (derotate, (k.int(), v.int(), *full), "k is Int"),
        "k of float64": (rerotate, (k.double(), v.double(), at, freq), "k is Double"),
        "k of three dimensions": (derotate, (k[0], v[0], *full), "4 dimensions"),
        "v of another shape": (derotate, (k, v[:, :, 1:], *full), "v is Float"),
        "v of another type": (derotate, (k, v.half(), *full), "v is Half"),
        "cos of fewer tokens": (derotate, (k, v, full[0][:, 1:], full[1][:, 1:]), "cos is Double"),
        "cos of an odd width": (derotate, (k, v, full[0][..., :7], full[1][..., :7]), "even rotary_dim"),
        "cos wider than a head": (derotate, (k, v, torch.ones(40, 12), torch.zeros(40, 12)), "<= D = 10"),
        "cos of integers": (derotate, (k, v, full[0].int(), full[1].int()), "cos is Int"),
        "sin of another width": (derotate, (k, v, full[0], torch.zeros(40, 6)), "sin is Float"),
        "cos of another batch": (derotate, (k, v, full[0].expand(2, -1, -1), full[1].expand(2, -1, -1)), "B = 3"),
        "cos in pairs, half-split": (derotate, (k, v, *Rope(8, 1e4, 1.0, 1.0, "cohere").cos_sin(at)), "cat(x, x)"),
        "positions as floats": (rerotate, (k, v, at.float(), freq), "new_pos_ids is Float"),
        "a negative position": (rerotate, (k, v, negative, freq), "new_pos_ids[3] is -1; expected a position from 0"),
        "a position too far": (rerotate, (k, v, far, freq), "new_pos_ids[39] is 1073741824"),
        "a delta too far": (shift, (*frame.buffers, 0, 0, 3, 2**30, freq), "delta is 1073741824"),
        "a negative position of a run": (
            ops.restore_kv,
            restore(changed(1, 5, -1)),
            "placement 1, positions: first -1",
        ),
        "a run beyond the positions": (ops.restore_kv, restore(changed(0, 5, 2**30 - 15)), "placement 0, positions"),
        "values of fewer heads to encode": (ops.encode_kv, (k, v[:, :1], 16, "bf16"), "v is Float"),
        "an infinity to encode": (ops.encode_kv, (k, v / 0, 16, "bf16"), "value of layer 0, head 0, token 0 "),
        "no layers to decode": (decode, (payload, 0, 2, 20, 10, 16, "e4m3", torch.float32), "layers is 0"),
        "negative tokens to decode": (decode, (payload, 3, 2, -1, 10, 16, "e4m3", torch.float32), "tokens is -1"),
        "too many tokens to decode": (decode, (payload, 3, 2, 2**62, 10, 16, "e4m3", torch.float32), "tokens is 46116"),
        "a page of 2^70 bytes": (
            decode,
            (payload, 2**30, 2**10, 20, 2**10, 2**20, "e4m3", torch.float32),
            "less than 2^63 bytes",
        ),
        "a payload of other tokens": (decode, (payload, 3, 2, 21, 10, 16, "e4m3", torch.float32), "tokens is 21"),
        "integers to decode to": (decode, (payload, 3, 2, 20, 10, 16, "e4m3", torch.int32), "dtype is Int"),
        "too few positions": (rerotate, (k, v, at[1:], freq), "int64 [40]"),
        "frequencies of float16": (rerotate, (k, v, at, freq.half()), "inv_freq is Half"),
        "frequencies of integers": (shift, (*frame.buffers, 0, 0, 3, 1, freq.long()), "inv_freq is Long"),
        "no frequencies of an odd head": (
            rerotate,
            (k[..., :9], v[..., :9], at),
            "inv_freq is not given; expected one where D is odd, as 9 is",
        ),
        "too many frequencies": (rerotate, (k, v, at, torch.ones(6, dtype=torch.float64)), "rotary_dim is 12"),
        "a frequency that is inf": (rerotate, (k, v, at, freq / 0), "inv_freq[0]"),
        "no attention scaling": (rerotate, (k, v, at, freq, 0.0), "attention_scaling"),
        "a source outside": (shift, (*frame.buffers, 30, 0, 11, 0, freq), "source"),
        "a target outside": (shift, (*frame.buffers, 0, -1, 3, 0, freq), "target"),
        "a negative count": (shift, (*frame.buffers, 0, 0, -3, 0, freq), "count -3"),
        "frequencies of another width": (shift, (*frame.buffers, 0, 0, 3, 1, freq[1:]), "phase"),
        "phases of float64": (shift, (k, v, cos.double(), sin.double(), 0, 0, 3, 1, freq), "cos is Double"),
        "phases of fewer slots": (shift, (k, v, cos[1:], sin[1:], 0, 0, 3, 1, freq), "F = 40"),
        "phases of one dimension": (shift, (k, v, cos[:, 0], sin[:, 0], 0, 0, 3, 1, freq), "cos is Float [40]"),
        "cos without dimensions": (shift, (k, v, cos[0, 0], sin, 0, 0, 3, 1, freq), "cos is Float []"),
        "one buffer for k and v": (shift, (k, k, cos, sin, 0, 0, 3, 1, freq), "k itself"),
        "one buffer for cos and sin": (shift, (k, v, cos, cos, 0, 0, 3, 1, freq), "cos itself"),
        "transposed rows": (shift, (k.mT, v.mT, cos, sin, 0, 0, 3, 1, freq), "strides"),
        "rows that are one row": (
            shift,
            (k[:, :1].expand(-1, 2, -1, -1), v[:, :1].expand(-1, 2, -1, -1), cos, sin, 0, 0, 3, 1, freq),
            "no row twice",
        ),
        "too many tokens": (archive, (*frame.buffers, 30, 11, 16, "bf16"), "span to archive"),
        "more tokens than slots": (archive, (*frame.buffers, 0, 41, 16, "bf16"), "tokens is 41"),
        "negative tokens": (archive, (*frame.buffers, 0, -1, 16, "bf16"), "tokens is -1"),
        "no such codec": (archive, (*frame.buffers, 0, 8, 16, "int3"), '"int3"'),
        "pages of no tokens": (archive, (*frame.buffers, 0, 8, 0, "bf16"), "page_tokens is 0"),
        "a NaN": (archive, (not_finite, v, cos, sin, 0, 40, 16, "e4m3"), "layer 1, head 0, token 7 "),
        "placements of floats": (ops.restore_kv, restore(places.double()), "placements is Double"),
        "placements of five fields": (ops.restore_kv, restore(places[:, 1:]), "int64 [N, 6]"),
        "a page outside the payload": (ops.restore_kv, restore(changed(1, 0, payload.numel())), "placement 1"),
        "a page too long": (ops.restore_kv, restore(changed(0, 1, 17)), "placement 0"),
        "a page of 2^40 tokens": (ops.restore_kv, restore(changed(0, 1, 2**40)), "placements[0, 1]"),
        "a run outside its page": (ops.restore_kv, restore(changed(0, 2, 1)), "placement 0"),
        "a slot outside": (ops.restore_kv, restore(changed(1, 4, 37)), "placement 1"),
        "overlapping runs": (ops.restore_kv, restore(changed(1, 4, 19)), "overlap"),
        "a payload of floats": (
            ops.restore_kv,
            (payload.float(), places, *frame.buffers, 16, "e4m3", freq),
            "payload is Float",
        ),
        "a payload with gaps": (
            ops.restore_kv,
            (payload[::2], places, *frame.buffers, 16, "e4m3", freq),
            "contiguous uint8",
        ),
    }


@pytest.mark.parametrize("name", sorted(bad_calls()))
def test_wrong_argument_is_named(name: str) -> None:
    function, args, message = bad_calls()[name]
    with pytest.raises(RuntimeError) as error:
        function(*args)
    assert message in str(error.value)


def test_an_out_that_does_not_fit_is_refused() -> None:
    frame = make_frame(Rope(8, 1e4, 1.0, 1.0, "half"), 0, slots=40, dim=10, dtype=torch.float32)
    size = ops.payload_bytes(20, 16, 3, 2, 10, "e4m3")
    before = frame.clone()
    for out in (
        torch.zeros(size - 1, dtype=torch.uint8),
        torch.zeros(size, dtype=torch.int8),
        torch.zeros(2 * size, dtype=torch.uint8)[::2],
        torch.zeros(1, size, dtype=torch.uint8),
        frame.k.view(-1).view(torch.uint8)[:size],
        frame.v.view(-1).view(torch.uint8)[-size:],
    ):
        with pytest.raises(RuntimeError, match="archive_kv: out is"):
            ops.archive_kv(*frame.buffers, 0, 20, 16, "e4m3", out=out)
    assert torch.equal(frame.k, before.k)
    assert torch.equal(frame.v, before.v)


def test_payload_bytes_names_a_wrong_codec() -> None:
    with pytest.raises(ValueError, match="int3"):
        ops.payload_bytes(1, 16, 1, 1, 8, "int3")


def test_want_of_memory_is_torchs_error() -> None:
    """As the native library says it (cpp/bindings/ops_results.h); what else it says stays as it is."""

    @ops._with_torchs_errors
    def raise_error(text: str) -> None:
        raise RuntimeError(text)

    with pytest.raises(torch.OutOfMemoryError, match="no room on the device"):
        raise_error("out of memory: no room on the device for a tensor of 12 34")
    with pytest.raises(RuntimeError, match="k is") as caught:
        raise_error("archive_kv: k is out of memory: no")
    assert not isinstance(caught.value, torch.OutOfMemoryError)


def test_a_gpu_that_a_build_has_no_kernels_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of hip/copy.hip; another error is none of this kind."""
    told = "derotate_kv: on Float [1, 1, 1, 2] on cuda:0: no kernels for this GPU; this everlong was built for sm_90"

    def refuse(*_: object) -> None:
        raise RuntimeError(told)

    monkeypatch.setattr(ops, "derotate_kv", refuse)
    ask = ops._no_kernels.__wrapped__  # what is kept is kept for the process
    assert ask(torch.device("cpu")) == told
    told = "an illegal memory access"
    with pytest.raises(RuntimeError, match="illegal"):
        ask(torch.device("cpu"))
    monkeypatch.undo()
    assert ask(torch.device("cpu")) is None
