"""Every operator on the device: the CPU's bits, the formula's numbers, the current stream, the same refusals.

On a CPU its results are compared with the formula alone. The indexes follow, and the suite's own tests of the device.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from everlong import ops
from everlong.models.rope import RopeTable, has_layer_tables, rope_table
from stages import calls
from stages.check import Check
from stages.differences import Differences, bits, differences, refusal
from stages.frames import SCALING, Frame, random_frame, rope_of
from stages.indexes import GROUP, HEADS, MEANING_DIM, PACK, PAGE, index_memory, page_scores
from support import TESTS, TINY_KINDS, WINDOW
from support.models import KINDS, ROPE, SHAPE
from support.operators import operator_calls
from support.rope import rotated

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# (head_dim, rotary_dim): whole vectors and odd rows, partial and no rotation.
SHAPES = ((64, 64), (128, 128), (256, 256), (96, 96), (48, 48), (128, 64), (64, 32), (21, 14), (48, 0), (256, 64))
FEW_SHAPES = ((64, 64), (21, 14), (48, 0))
GPU_TESTS = ("test_gpu_ops.py", "test_gpu_heads.py", "test_gpu_meaning.py", "test_gpu_captured_step.py")
ULP = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}  # of 1.0
# Half a step of a code: of a number, and of the largest of its group, whose range is at most twice that.
HALF_STEP = {"fp32": (0.0, 0.0), "bf16": (2.0**-8, 0.0), "e4m3": (2.0**-4, 2.0**-18), "e5m2": (2.0**-3, 2.0**-32)}
HALF_STEP |= {f"{bits} bits": (0.0, 1.02 / (2**bits - 1) + 2.0**-8) for bits in (4, 5, 6, 8)}
# Of keys and of values. Centred keys are as far off as the largest of their group.
CODES = {
    **{codec: (codec, codec) for codec in ("fp32", "bf16", "e4m3", "e5m2")},
    **{f"{codec}-plain": (codec, codec) for codec in ("e4m3", "e5m2")},
    **{f"int{bits}": (f"{bits} bits", f"{bits} bits") for bits in (4, 6, 8)},
    **{f"k{bits}v4": (f"{bits} bits", "4 bits") for bits in (5, 8)},
}
FP8 = ("e4m3", "e5m2")
FEW = 1.3e9  # bytes that tensors may take on a device with little memory


def run(check: Check) -> None:
    torch.set_num_threads(4 if check.on_gpu else 1)  # inputs are small, and the suite wants a core
    suite = start_suite(check)
    try:
        _run(check)
    finally:
        finish_suite(check, suite)


def _run(check: Check) -> None:
    with check.case("this build has operators for the device"):
        assert ops.runs_on(check.device)
        frame = random_frame(torch.float32, 64, rope_of(64)).to(check.device)
        ops.archive_kv(*frame.buffers, 0, 64, 64, "e4m3")
    compared = [by_formula(check)]
    if check.on_gpu:
        compared += bit_for_bit(check)
        rope_kinds(check)
        current_stream(check)
        wrong_device(check)
    refusals(check)
    heads(check)
    meaning(check)
    if check.on_gpu:
        large(check)
    citizens(check)
    check.figure("numbers compared", sum(one.compared for one in compared))
    check.figure(
        "numbers off by a rounding, where the device computes angles",
        sum(one.rounded for one in compared),
        note="fp64 cos and sin of a GPU may differ in the last bit",
    )


def frames_of(
    shapes: tuple[tuple[int, int], ...], dtypes: tuple[torch.dtype, ...] = DTYPES
) -> Iterator[tuple[str, Frame]]:
    """Yield frames of every shape, element type and pairing, each with a description."""
    for head_dim, rotary_dim in shapes:
        for dtype in dtypes:
            for interleaved in (False, True):
                pairs = "interleaved" if interleaved else "half-split"
                what = f"{dtype}, head {head_dim}, rotary {rotary_dim}, {pairs}"
                yield what, random_frame(dtype, head_dim, rope_of(rotary_dim, interleaved))


# --- the same bits as the CPU's


def bit_for_bit(check: Check) -> list[Differences]:
    """Run every call over every frame, with a case for each operator and codec."""
    shapes = FEW_SHAPES if check.small else SHAPES
    by_case: dict[str, list[calls.Call]] = {}
    for call in calls.rotation_calls():
        by_case.setdefault(call.operator, []).append(call)
    for codec in ops.CODECS:
        for call in calls.codec_calls(codec):
            by_case.setdefault(f"{call.operator} {codec}", []).append(call)
    made = list(frames_of(shapes))
    found = []
    for name, of_case in by_case.items():
        if check.left < 22:  # the rest is the other half of the stage
            check.tell(f"{name}: left out", f"{check.left:.0f} s left")
            continue
        with differences(check, f"{name}: the CPU's bits") as unlike:
            for what, frame in made:
                for call in of_case:
                    compare(check, unlike, call, frame, what)
        found.append(unlike)
    return found


def compare(check: Check, unlike: Differences, call: calls.Call, frame: Frame, what: str) -> None:
    """Compare the device with the CPU, each on a copy of the frame."""
    with unlike.combination(f"{what}; {call.what}"):
        got, want = (call.run(frame.to(device)) for device in (check.device, CPU))
        unlike.require_same(got, want, angles=call.angles)


def rope_kinds(check: Check) -> None:
    """Check frequencies and attention scaling of every kind of RoPE that transformers has."""
    of_each = [*calls.rotation_calls()[:1], calls.rerotate("contiguous", True), calls.shift(1, 0, 299, -1)]
    of_each += [calls.gather(True), calls.archive("e4m3", 64), calls.restore("e4m3", 64)]
    for kind, rope in TINY_KINDS:
        with differences(check, f"RoPE {rope} of {kind}: the CPU's bits") as unlike:
            for layer_type, table in tables(kind, rope):
                frame = random_frame(torch.bfloat16, 64, table)
                for call in of_each:
                    compare(check, unlike, call, frame, f"{layer_type}, {call.operator}")


def tables(kind: str, rope: str) -> Iterator[tuple[str | None, RopeTable]]:
    """Yield the tables of a tiny model's config, by type of layers where it has several."""
    model_type, own = KINDS[kind]
    shape = {**SHAPE, **own, "rope_parameters": dict(ROPE[rope])}
    config = transformers.AutoConfig.for_model(model_type, **shape)
    kinds = sorted(config.rope_parameters) if has_layer_tables(config) else [None]
    for layer_type in kinds:
        yield layer_type, rope_table(config, layer_type, WINDOW)


# --- the formula's numbers


def by_formula(check: Check) -> Differences:
    """Compare with complex numbers in fp64, allowing for what a codec may round."""
    # More shapes change nothing here: bits are compared over all of them.
    made = list(frames_of(((21, 14),), (torch.float32,))) + list(frames_of(((64, 32),), (torch.bfloat16,)))
    if not check.small:
        made += frames_of(((64, 64), (48, 0)))
    with differences(check, "every operator: the formula's numbers") as unlike:
        for what, frame in made:
            with unlike.combination(what):
                rotations_by_formula(check, unlike, frame)
                codecs_by_formula(check, unlike, frame)
    return unlike


def rotations_by_formula(check: Check, unlike: Differences, frame: Frame) -> None:
    table, here = frame.table, frame.to(check.device)
    m, inv_freq, interleaved = table.attention_scaling, table.inv_freq, table.interleaved

    def near(got: torch.Tensor, want: torch.Tensor) -> None:
        largest = want.norm(dim=-1, keepdim=True)
        unlike.require_near(got, want, ULP[frame.k.dtype] * want.abs() + 3e-6 * largest)

    cos, sin = calls.full_phase(here.cos), calls.full_phase(here.sin)
    plain, values = ops.derotate_kv(here.k, here.v, cos, sin, interleaved)
    near(plain, rotated(frame.k, table, -frame.positions, 1 / m))
    assert torch.equal(bits(values), bits(frame.v)), "derotate_kv: v is no copy"
    at = calls.new_positions(frame.slots)
    turned, values = ops.rerotate_kv(here.k, here.v, at, inv_freq, m, interleaved)
    near(turned, rotated(frame.k, table, at, m))
    assert torch.equal(bits(values), bits(frame.v)), "rerotate_kv: v is no copy"

    shifted = frame.to(check.device)
    ops.shift_kv_(*shifted.buffers, 20, 3, 250, -17, inv_freq, interleaved)
    near(shifted.k[:, :, 3:253], rotated(frame.k[:, :, 20:270], table, torch.full((250,), -17), 1.0))
    assert torch.equal(bits(shifted.v[:, :, 3:253]), bits(frame.v[:, :, 20:270])), "shift_kv_: v did not move"
    angles = (frame.positions[20:270, None] - 17).double() * inv_freq
    unlike.require_near(shifted.cos[3:253], angles.cos() * m, 2e-6)
    unlike.require_near(shifted.sin[3:253], angles.sin() * m, 2e-6)

    gathered, other = frame.to(check.device), calls.other_frame(frame)
    sources, targets, positions = calls.gather_arguments(frame.slots)
    calls.gather(True).run(gathered)
    delta = positions - frame.positions.flip(0)[sources]
    near(gathered.k[:, :, targets.to(check.device)], rotated(other.k[:, :, sources], table, delta, 1.0))
    assert torch.equal(bits(gathered.v.cpu()[:, :, targets]), bits(other.v[:, :, sources])), "gather_kv_: v"


def codecs_by_formula(check: Check, unlike: Differences, frame: Frame) -> None:
    table, here = frame.table, frame.to(check.device)
    m, first, end = table.attention_scaling, calls.FIRST, calls.FIRST + calls.TOKENS
    layers, heads, _, head_dim = frame.k.shape
    plain = rotated(frame.k, table, -frame.positions, 1 / m)[:, :, first:end]
    for codec in ops.CODECS:
        payload = calls.archived(here, codec, 64)
        sizes = (layers, heads, calls.TOKENS, head_dim, 64, codec, torch.float32)
        decoded, exact = ops.decode_kv(payload, *sizes), (plain, frame.v[:, :, first:end].double())
        for got, want, code in zip(decoded, exact, CODES[codec], strict=True):
            rounded = rounded_by(code, want, centred=want is plain and code == codec and code in FP8)
            unlike.require_near(got, want, 1.001 * rounded + 3e-6 * want.norm(dim=-1, keepdim=True))
        places = calls.placements(frame, codec, 64)
        filled = frame.to(check.device)
        ops.restore_kv(payload, places, *filled.buffers, 64, codec, table.inv_freq, m, table.interleaved)
        # The first page goes to slots 3 to 66 at positions 0 to 63; a pair turns with the error of both of its numbers.
        want = rotated(plain[:, :, :64], table, torch.arange(64), m)
        code = CODES[codec][0]
        rounded = rounded_by(code, plain[:, :, :64], centred=code == codec and code in FP8).amax(-1, keepdim=True)
        unlike.require_near(
            filled.k[:, :, 3:67],
            want,
            2 * m * rounded + 1e-5 * want.norm(dim=-1, keepdim=True) + ULP[frame.k.dtype] * want.abs(),
        )


def rounded_by(code: str, numbers: torch.Tensor, *, centred: bool) -> torch.Tensor:
    """Return how far a code may put numbers [..., T, D] off."""
    of_number, of_largest = HALF_STEP[code]
    largest = numbers.abs().amax()
    return of_number * (largest if centred else numbers.abs()) + of_largest * largest


# --- streams, refusals, torch


Late = Callable[[list[torch.Tensor]], list[torch.Tensor]]


def current_stream(check: Check) -> None:
    """Check the current stream: inputs come late on a side stream, so work on another stream would read zeros."""
    frame = random_frame(torch.bfloat16, 64, rope_of(64))
    table = frame.table

    def same(name: str, run: Late, inputs: list[torch.Tensor], *, angles: bool) -> None:
        with differences(check, f"{name}: on the current stream") as unlike, unlike.combination("side stream"):
            want = run([tensor.clone() for tensor in inputs])
            got = on_side_stream(run, [tensor.to(check.device) for tensor in inputs])
            unlike.require_same(got, want, angles=angles)

    for call in calls.plain_calls():
        if call.operator not in ("restore_kv", "decode_kv"):  # they begin with an archive, which waits
            whole = partial(call_with, call, table)
            same(f"{call.operator} {call.what}", whole, list(frame.buffers), angles=call.angles)
    layers, heads, _, head_dim = frame.k.shape
    for codec in ops.CODECS:
        payload, places = calls.archived(frame, codec, 64), calls.placements(frame, codec, 64)

        def restored(tensors: list[torch.Tensor], codec: str = codec, places: Any = places) -> list[torch.Tensor]:
            payload, k, v, cos, sin = tensors
            ops.restore_kv(payload, places, k, v, cos, sin, 64, codec, table.inv_freq, SCALING)
            return [k, v, cos, sin]

        def decoded(tensors: list[torch.Tensor], codec: str = codec) -> list[torch.Tensor]:
            sizes = (layers, heads, calls.TOKENS, head_dim, 64, codec, torch.bfloat16)
            return list(ops.decode_kv(tensors[0], *sizes))

        same(f"restore_kv {codec}", restored, [payload, *frame.buffers], angles=True)
        same(f"decode_kv {codec}", decoded, [payload], angles=False)


def call_with(call: calls.Call, table: RopeTable, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return call.run(Frame(table, *tensors))


def on_side_stream(run: Late, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return what run(inputs) gives where the inputs are zeros until the stream has copied them."""
    late = [torch.zeros_like(tensor) for tensor in inputs]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
        for to, of in zip(late, inputs, strict=True):
            to.copy_(of)
        got = [tensor.clone() for tensor in run(late)]
    stream.synchronize()
    return got


def refusals(check: Check) -> None:
    """Check that what no codec can hold is named, in the CPU's words."""
    devices = (CPU, check.device) if check.on_gpu else (CPU,)
    for codec in ops.CODECS:
        with differences(check, f"archive_kv {codec}: NaN and infinities are refused alike") as unlike:
            for what, frame in frames_of(((64, 64), (21, 14)), (torch.float32, torch.bfloat16)):
                for buffer, name in enumerate("kv"):
                    for value in (torch.nan, torch.inf, -torch.inf):
                        with unlike.combination(f"{what}; {name} has {value}"):
                            refused_alike(frame, buffer, value, codec, devices)
    with check.case("archive_kv: infinities in keys at position 0 are refused alike"):
        frame = random_frame(torch.float32, 64, rope_of(64))
        frame.cos.fill_(1.0)
        frame.sin.fill_(0.0)
        refused_alike(frame, 0, torch.inf, "e4m3", devices, number=45)  # its partner, 13, becomes inf * 0


def refused_alike(
    frame: Frame, buffer: int, value: float, codec: str, devices: tuple[torch.device, ...], number: int = 13
) -> None:
    messages = []
    for device in devices:
        bad = frame.to(device)
        bad.buffers[buffer][1, 2, 150, number] = value
        bad.buffers[1 - buffer][0, 0, 250, 7] = value  # on a later page
        messages.append(refusal(partial(ops.archive_kv, *bad.buffers, 11, 280, 64, codec, frame.table.interleaved)))
    assert re.search("layer 1, head 2,.*; expected a finite number", messages[0]), messages[0]
    assert len(set(messages)) == 1, " | ".join(messages)


def wrong_device(check: Check) -> None:
    """Check that a tensor on another device is refused in words, whichever argument it is."""
    frame = random_frame(torch.float32, 64, rope_of(64))
    here = frame.to(check.device)
    inv_freq, cos, sin = frame.table.inv_freq, calls.full_phase(here.cos), calls.full_phase(here.sin)
    sources, targets, positions = calls.gather_arguments(frame.slots)
    payload = ops.archive_kv(*here.buffers, 0, 64, 64, "e4m3")
    places = torch.tensor([[0, 64, 0, 64, 0, 0]])
    buffers = dict(zip(("k", "v", "cos", "sin"), here.buffers, strict=True))
    of_frame = {f"from_{name}": tensor for name, tensor in buffers.items()}
    into = {f"to_{name}": tensor.clone() for name, tensor in buffers.items()}
    out = torch.empty_like(payload)
    kv = torch.ops.everlong
    all_calls: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
        "derotate_kv": (kv.derotate_kv, {"k": here.k, "v": here.v, "cos": cos, "sin": sin}, ("k", "v")),
        "rerotate_kv": (
            kv.rerotate_kv,
            {"k": here.k, "v": here.v, "new_pos_ids": frame.positions, "inv_freq": inv_freq},
            ("k", "v"),
        ),
        "shift_kv_": (
            kv.shift_kv_,
            {**buffers, "source": 10, "target": 0, "count": 50, "delta": -10, "inv_freq": inv_freq},
            tuple(buffers),
        ),
        "gather_kv_": (
            kv.gather_kv_,
            {**of_frame, "sources": sources, **into, "targets": targets, "positions": positions, "inv_freq": inv_freq},
            (*of_frame, *into),
        ),
        "archive_kv": (
            kv.archive_kv,
            {**buffers, "first_slot": 0, "tokens": 64, "page_tokens": 64, "codec": "e4m3"},
            tuple(buffers),
        ),
        "archive_kv.out": (
            kv.archive_kv.out,
            {**buffers, "first_slot": 0, "tokens": 64, "page_tokens": 64, "codec": "e4m3", "out": out},
            (*buffers, "out"),
        ),
        "restore_kv": (
            kv.restore_kv,
            {
                "payload": payload,
                "placements": places,
                **buffers,
                "page_tokens": 64,
                "codec": "e4m3",
                "inv_freq": inv_freq,
            },
            ("payload", *buffers),
        ),
        "encode_kv": (kv.encode_kv, {"k": here.k, "v": here.v, "page_tokens": 64, "codec": "e4m3"}, ("k", "v")),
    }
    for name, (operator, arguments, on_device) in all_calls.items():
        with differences(check, f"{name}: a tensor on another device is refused") as unlike:
            with unlike.combination("as it should be"):
                operator(**arguments)
            for argument in on_device:
                with unlike.combination(argument):
                    elsewhere = {**arguments, argument: arguments[argument].cpu()}
                    said = refusal(partial(operator, **elsewhere))
                    assert re.search(r"is \w+ \[.*\] on .*; expected a tensor on", said), said


def citizens(check: Check) -> None:
    """Run torch's own checks of an operator: schema, shapes without data, and in a full check as part of a graph."""

    def here(value: Any) -> Any:
        return value.to(check.device) if isinstance(value, torch.Tensor) else value

    utils = ("test_schema", "test_faketensor")
    for name, (operator, arguments, *keywords) in operator_calls().items():
        with check.case(f"{name}: opcheck"):
            named = {key: here(value) for key, value in (keywords[0] if keywords else {}).items()}
            torch.library.opcheck(operator, tuple(map(here, arguments)), named, test_utils=utils)
    if check.small or check.left < 10:
        return
    for name in ("derotate_kv", "shift_kv_", "archive_kv, out", "restore_kv"):
        operator, arguments, *keywords = operator_calls()[name]
        with check.case(f"{name}: opcheck in a graph"):
            named = {key: here(value) for key, value in (keywords[0] if keywords else {}).items()}
            torch.library.opcheck(operator, tuple(map(here, arguments)), named, test_utils="test_aot_dispatch_dynamic")


# --- more elements than 32 bits count


def large(check: Check) -> None:
    """Check a frame of more than 2^31 elements: its end must be treated like the beginning of a small one."""
    layers, heads, head_dim = 4, 8, 128
    slots = 64 * 200 if check.small else 64 * 9375
    free = torch.cuda.mem_get_info(check.device)[0]
    frame_bytes = 4 * layers * heads * slots * head_dim  # k and v in bf16
    if check.left < 12 or free < 3 * frame_bytes + FEW:
        check.tell("large", f"left out: {check.left:.0f} s left, {free / 1e9:.0f} GB free")
        return
    table = rope_of(head_dim)
    shape = (layers, heads, slots, head_dim)
    with check.case("a frame of more than 2^31 elements"):
        k, v = (torch.empty(shape, dtype=torch.bfloat16, device=check.device).normal_() for _ in range(2))
        angles = torch.arange(slots, device=check.device).double()[:, None] * table.inv_freq.to(check.device)
        whole = Frame(table, k, v, angles.cos().float(), angles.sin().float())
        del angles, k, v
        check.tell("large frame", f"{whole.k.numel():,} elements")
        for codec in ("e4m3", "bf16"):
            large_codec(check, whole, codec)
        large_rotation(check, whole)
        del whole
    torch.cuda.empty_cache()


def page_of(whole: Frame, page: int) -> Frame:
    """Return a copy of 64 slots."""
    span = slice(64 * page, 64 * page + 64)
    k, v = (tensor[:, :, span].contiguous() for tensor in (whole.k, whole.v))
    return Frame(whole.table, k, v, whole.cos[span].clone(), whole.sin[span].clone())


def large_codec(check: Check, whole: Frame, codec: str) -> None:
    layers, heads, slots, head_dim = whole.k.shape
    inv_freq = whole.table.inv_freq
    pages = (0, slots // 128, slots // 64 - 1)
    page_bytes = ops.payload_bytes(64, 64, layers, heads, head_dim, codec)
    payload = ops.archive_kv(*whole.buffers, 0, slots, 64, codec)
    parts = {page: payload[page * page_bytes : (page + 1) * page_bytes].clone() for page in pages}
    with differences(check, f"archive_kv {codec}: beyond 2^31 elements") as unlike:
        for page in pages:
            with unlike.combination(f"page {page}"):
                unlike.require_same([parts[page]], [ops.archive_kv(*page_of(whole, page).buffers, 0, 64, 64, codec)])
    with differences(check, f"restore_kv {codec}: beyond 2^31 elements") as unlike:
        at = torch.arange(slots // 64)
        sixty_four = torch.full_like(at, 64)
        places = torch.stack((at * page_bytes, sixty_four, torch.zeros_like(at), sixty_four, at * 64, at * 64), dim=1)
        filled = Frame(whole.table, *(torch.zeros_like(tensor) for tensor in whole.buffers))
        ops.restore_kv(payload, places, *filled.buffers, 64, codec, inv_freq)
        for page in pages:
            with unlike.combination(f"page {page}"):
                small = page_of(whole, page)
                place = torch.tensor([[0, 64, 0, 64, 0, 64 * page]])
                ops.restore_kv(parts[page], place, *small.buffers, 64, codec, inv_freq)
                unlike.require_same(page_of(filled, page).buffers, small.buffers)


def large_rotation(check: Check, whole: Frame) -> None:
    """Check the rotations; the last of them moves the frame's slots."""
    slots, inv_freq = whole.slots, whole.table.inv_freq
    last, middle = slots // 64 - 1, slots // 128
    with differences(check, "rerotate_kv: beyond 2^31 elements") as unlike:
        positions = torch.arange(slots)
        turned = Frame(whole.table, *ops.rerotate_kv(whole.k, whole.v, positions, inv_freq), whole.cos, whole.sin)
        for page in (0, middle, last):
            with unlike.combination(f"slots from {64 * page}"):
                small = page_of(whole, page)
                span = slice(64 * page, 64 * page + 64)
                alone = ops.rerotate_kv(small.k, small.v, positions[span], inv_freq)
                unlike.require_same(page_of(turned, page).buffers[:2], alone)
        del turned
    with differences(check, "gather_kv_: beyond 2^31 elements") as unlike, unlike.combination("of the last slots"):
        sources, targets, taken = torch.tensor([slots - 1, slots // 2, 5]), torch.tensor([2, 0, 1]), torch.arange(3)
        got, want = page_of(whole, 0), page_of(whole, 0)
        ops.gather_kv_(*whole.buffers, sources, *got.buffers, targets, taken, inv_freq)
        here = sources.to(check.device)
        k, v = (tensor[:, :, here].contiguous() for tensor in (whole.k, whole.v))
        picked = Frame(whole.table, k, v, whole.cos[here], whole.sin[here])
        ops.gather_kv_(*picked.buffers, taken, *want.buffers, targets, taken, inv_freq)
        unlike.require_same(got.buffers, want.buffers)
    with differences(check, "shift_kv_: beyond 2^31 elements") as unlike:
        moved = {page: page_of(whole, page) for page in (middle, last)}
        ops.shift_kv_(*whole.buffers, 64 * middle, 0, slots - 64 * middle, -7, inv_freq)
        for page, small in moved.items():
            with unlike.combination(f"slots from {64 * page}"):
                ops.shift_kv_(*small.buffers, 0, 0, 64, -7, inv_freq)
                unlike.require_same(page_of(whole, page - middle).buffers, small.buffers)


# --- indexes


def heads(check: Check) -> None:
    """Check the scan of retrieval heads against the softmax mass of a page in fp64, and against the host's scores."""
    worst = 0.0
    for head_dim in (64,) if check.small else (64, 128, 21, 256):
        rng = np.random.default_rng(head_dim)
        memory, keys, _ = index_memory(head_dim, rng)
        for storage in ("bf16", "int8", "e4m3"):
            with check.case(f"heads {storage}, head {head_dim}"):
                for tokens in (1, 3, 16):
                    ids = np.arange(tokens, dtype=np.int32)
                    q = 3 * rng.standard_normal((tokens, len(HEADS), head_dim)).astype(np.float32)
                    memory.index.set_retrieval_heads(HEADS, keys=storage)
                    host = page_scores(memory, "heads", token_ids=ids, head_queries=q)
                    got, allowed = host, 0.02 if storage == "bf16" else 0.6
                    if check.on_gpu:
                        memory.index.set_retrieval_heads(
                            HEADS, keys=storage, device=check.device.index, device_bytes=1 << 28
                        )
                        got = page_scores(memory, "heads", token_ids=ids, head_queries=q)
                        assert memory.index.device_use("heads")[1] == 1, memory.index.take_messages()
                        worst = max(worst, unlike_scores(got, host))
                        assert worst <= 1e-4, f"off by {worst} of the host's score"
                    if tokens != 3:
                        continue
                    off = unlike_scores(got, mass_by_numpy(keys, q, memory.search.idf(ids)))
                    assert off <= allowed, f"off by {off} of the definition"
        memory.close()
    if check.on_gpu:
        check.figure("heads: largest difference from the host's scores", worst, wanted="<= 0.0001")


def unlike_scores(got: dict[int, float], want: dict[int, float]) -> float:
    """Return the largest difference, as a share of what it should be."""
    assert got.keys() == want.keys(), f"{len(got)} pages, expected {len(want)}"
    return max(abs(got[page] / want[page] - 1) for page in want)


def mass_by_numpy(keys: torch.Tensor, q: Any, weights: Any) -> dict[int, float]:
    """Return the definition: for every page the sum over question tokens and heads of weight * softmax mass."""
    mass = np.zeros(keys.shape[1])
    for head, (_, _, kv_head) in enumerate(HEADS):
        scores = q[:, head].astype(np.float64) @ keys[kv_head].double().numpy().T / keys.shape[2] ** 0.5
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        mass += weights @ (powers / powers.sum(axis=1, keepdims=True))
    return {first: float(mass[first : first + PAGE].sum()) for first in range(0, len(mass), PAGE)}


def meaning(check: Check) -> None:
    """Check the scan of vectors of meaning against cosines in fp64, and against the host's scores to the bit."""
    rng = np.random.default_rng(7)
    memory, _, codes = index_memory(64, rng)
    with check.case("meaning"):
        for tokens in (1, 5, 16, 17, 70):
            rows = rng.standard_normal((tokens, MEANING_DIM)).astype(np.float32)
            question = {"token_ids": np.zeros(0, np.int32), "meaning_query": rows}
            memory.index.set_meaning(PACK, MEANING_DIM, GROUP)
            host = page_scores(memory, "meaning", **question)
            if check.on_gpu:
                memory.index.set_meaning(PACK, MEANING_DIM, GROUP, device=check.device.index, device_bytes=1 << 26)
                got = page_scores(memory, "meaning", **question)
                assert memory.index.device_use("meaning")[1] == 1, memory.index.take_messages()
                assert got == host, f"off by {unlike_scores(got, host)} of the host's score"
            vectors = codes.astype(np.float64)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            cosines = rows.astype(np.float64) @ vectors.T
            starts = range(0, len(codes), PAGE // GROUP)
            want = [cosines[:, at : at + PAGE // GROUP].max(axis=1).sum() for at in starts]
            for number, score in enumerate(want):
                of_page = host[number * PAGE]
                assert abs(of_page - score) <= 0.02 * abs(score) + 0.02, f"page {number}: {of_page}, expected {score}"
    memory.close()


# --- the suite's own tests of a device


def start_suite(check: Check) -> tuple[subprocess.Popen[bytes], Path]:
    """Start the suite's tests of the device, in a process beside this stage."""
    folder = TESTS / "python"
    report = Path(tempfile.mkdtemp()) / "suite.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-x" if check.small else "--maxfail=20", "-p", "no:cacheprovider"]
    # Where there is no pyproject.toml, pytest would not look above gpu/ for conftest.py.
    command += ["--tb=short", f"--junitxml={report}", f"--confcutdir={folder}"]
    command += [str(folder / "gpu" / name) for name in GPU_TESTS]
    return subprocess.Popen(command, cwd=report.parent, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}), report


def finish_suite(check: Check, suite: tuple[subprocess.Popen[bytes], Path]) -> None:
    """Require that every test passed; without a GPU every one must be skipped."""
    process, report = suite
    with check.case("the suite's tests of the device"):
        try:
            process.wait(max(check.left - 2, 1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        tests = list(ElementTree.parse(report).getroot().iter("testcase"))
        skipped = [named(test) for test in tests if test.find("skipped") is not None]
        failed = [named(test) for test in tests if test.find("failure") is not None or test.find("error") is not None]
        check.figure("suite: passed", len(tests) - len(skipped) - len(failed), "tests")
        check.figure("suite: failed", len(failed), "tests", wanted="== 0")
        check.figure("suite: skipped", len(skipped), "tests", wanted="== 0" if check.on_gpu else None)
        assert process.returncode == 0, f"pytest: {process.returncode}; {failed[:5]}"
        assert not failed, f"{failed[:5]}"
        assert len(skipped) == (0 if check.on_gpu else len(tests)), f"skipped: {skipped[:5]}"


def named(test: ElementTree.Element) -> str:
    return f"{test.get('classname')}.{test.get('name')}"
