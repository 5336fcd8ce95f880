"""Every kv operator against a memcpy of the same bytes and against the same written in torch eager, in one run.

    python benchmarks/kv_operators.py [--device cpu|cuda] [--model NAME] [--tokens 4096] [--threads N] [--json FILE]

Bytes are those that an operator must read and write: keys, values and payload. The memcpy moves as many, with as many
threads, into a buffer that was written before ("of memcpy"). For the operators that return new tensors it also moves
them into a new buffer, whose pages the system must first provide ("to new"). Seconds are the median of alternating
rounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from memcpy import memcpy
from rich.console import Console
from rich.table import Table

import everlong._core as _core
from everlong import ops
from everlong.models.hardware import processor

PAGE = 64
FP8 = {"e4m3": (torch.float8_e4m3fn, 448.0), "e5m2": (torch.float8_e5m2, 57344.0)}


@dataclasses.dataclass(frozen=True)
class Geometry:
    name: str
    layers: int
    kv_heads: int
    head_dim: int


GEOMETRIES = (Geometry("SmolLM2-135M", 30, 3, 64), Geometry("Qwen3-8B", 36, 8, 128))


@dataclasses.dataclass(frozen=True)
class Case:
    operator: str
    codec: str
    moved: int  # bytes read and written
    fresh: bool  # whether the result is a new tensor
    run: Callable[[], object]
    eager: Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Row:
    geometry: str
    operator: str
    codec: str
    milliseconds: float
    gigabytes_per_second: float
    of_memcpy: float
    of_memcpy_to_new: float | None
    times_eager: float


# --- the same in torch eager


def rotate(k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return k [..., T, D] turned by cos, sin [T, D/2], in float32."""
    x, y = k.float().chunk(2, -1)
    return torch.cat((x * cos - y * sin, y * cos + x * sin), -1)


def unrotate(k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    norm = cos * cos + sin * sin
    return rotate(k, cos / norm, -sin / norm)


def encode(k: torch.Tensor, v: torch.Tensor, codec: str) -> torch.Tensor:
    """Return k, v [L, Hkv, T, D], T whole pages, as the payload's bytes."""
    layers, heads, tokens, dim = k.shape
    pages = [x.view(layers, heads, -1, PAGE, dim) for x in (k, v)]
    parts = []
    if codec == "bf16":
        parts = [x.bfloat16() for x in pages]
    else:
        dtype, largest = FP8[codec]
        keys, values = (x.float() for x in pages)
        centres = ((keys.amin(-2, keepdim=True) + keys.amax(-2, keepdim=True)) / 2).bfloat16()
        keys = keys - centres
        scales = [keys.abs().amax(-2, keepdim=True), values.abs().amax(-1, keepdim=True)]
        scales = [torch.where(s == 0, 1.0, s / largest) for s in scales]
        parts = [(x / s).to(dtype) for x, s in zip((keys, values), scales, strict=True)] + [*scales, centres]
    rows = [p.permute(2, 0, 1, 3, 4).reshape(tokens // PAGE, layers, -1).view(torch.uint8) for p in parts]
    return torch.cat(rows, -1).flatten()


def decode(payload: torch.Tensor, geometry: Geometry, codec: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float32 k, v [L, Hkv, T, D] of whole pages."""
    heads, dim = geometry.kv_heads, geometry.head_dim
    width = 2 if codec == "bf16" else 1
    codes, sizes = heads * PAGE * dim * width, [heads * dim * 4, heads * PAGE * 4, heads * dim * 2]
    parts = payload.view(-1, geometry.layers, 2 * codes + (0 if codec == "bf16" else sum(sizes)))
    dtype = torch.bfloat16 if codec == "bf16" else FP8[codec][0]
    out = []
    for i, scale_shape in enumerate(((1, dim), (PAGE, 1))):
        rows = parts[..., i * codes : (i + 1) * codes].contiguous().view(dtype).float()
        rows = rows.view(-1, geometry.layers, heads, PAGE, dim)
        if codec != "bf16":
            at = 2 * codes + i * sizes[0]
            scales = parts[..., at : at + sizes[i]].contiguous().view(torch.float32)
            rows = rows * scales.view(-1, geometry.layers, heads, *scale_shape)
            if i == 0:
                centres = parts[..., -sizes[2] :].contiguous().view(torch.bfloat16).float()
                rows = rows + centres.view(-1, geometry.layers, heads, 1, dim)
        out.append(rows.permute(1, 2, 0, 3, 4).reshape(geometry.layers, heads, -1, dim))
    return out[0], out[1]


# --- cases


def cases(geometry: Geometry, tokens: int, device: torch.device) -> list[Case]:
    layers, heads, dim = geometry.layers, geometry.kv_heads, geometry.head_dim
    generator = torch.Generator(device).manual_seed(0)
    k, v = (torch.randn(layers, heads, tokens, dim, generator=generator, device=device).bfloat16() for _ in range(2))
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim
    inv_freq = 1e6**-exponents
    at = torch.arange(tokens, device=device)
    angles = at.double()[:, None] * inv_freq
    cos, sin = angles.cos().float(), angles.sin().float()
    full_cos, full_sin = (torch.cat((x, x), -1) for x in (cos, sin))
    kv_bytes = 2 * k.numel() * k.element_size()
    moved_slots, by = tokens - 8 * PAGE, 8 * PAGE

    def eager_rerotate() -> tuple[torch.Tensor, torch.Tensor]:
        angles = at.double()[:, None] * inv_freq
        return rotate(k, angles.cos().float(), angles.sin().float()).bfloat16(), v.clone()

    def eager_shift() -> None:
        delta = -by * inv_freq
        c, s = delta.cos().float(), delta.sin().float()
        k[:, :, :moved_slots] = rotate(k[:, :, by:], c, s).bfloat16()
        v[:, :, :moved_slots] = v[:, :, by:].clone()

    # Take every eighth slot out of the frame, un-rotated, and put them back without gaps.
    few = tokens // 8
    sources, rows = at[::8][:few], torch.arange(few, device=device)
    masters_k, masters_v = torch.zeros_like(k[:, :, :few]), torch.zeros_like(v[:, :, :few])
    no_cos, no_sin = torch.ones_like(cos[:few]), torch.zeros_like(sin[:few])
    nowhere = torch.zeros_like(rows)

    def take() -> None:
        masters = (masters_k, masters_v, no_cos, no_sin)
        ops.gather_kv_(k, v, cos, sin, sources, *masters, rows, nowhere, inv_freq)

    def put() -> None:
        masters = (masters_k, masters_v, no_cos, no_sin)
        ops.gather_kv_(*masters, rows, k, v, cos, sin, rows, rows, inv_freq)

    def eager_take() -> None:
        masters_k.copy_(unrotate(k[:, :, sources], cos[sources], sin[sources]))
        masters_v.copy_(v[:, :, sources])

    def eager_put() -> None:
        angles = rows.double()[:, None] * inv_freq
        k[:, :, :few] = rotate(masters_k[:, :, rows], angles.cos().float(), angles.sin().float()).bfloat16()
        v[:, :, :few] = masters_v[:, :, rows]

    staging = _core.TransferEngine(device=None, pool_bytes=8 * kv_bytes)

    found = [
        Case(
            "derotate_kv",
            "",
            2 * kv_bytes,
            True,
            lambda: ops.derotate_kv(k, v, full_cos, full_sin),
            lambda: (unrotate(k, cos, sin).bfloat16(), v.clone()),
        ),
        Case("rerotate_kv", "", 2 * kv_bytes, True, lambda: ops.rerotate_kv(k, v, at, inv_freq), eager_rerotate),
        Case(
            "shift_kv_",
            "",
            2 * kv_bytes * moved_slots // tokens,
            False,
            lambda: ops.shift_kv_(k, v, cos.clone(), sin.clone(), by, 0, moved_slots, -by, inv_freq),
            eager_shift,
        ),
        Case("gather_kv_, take 1 of 8", "", 2 * kv_bytes // 8, False, take, eager_take),
        Case("gather_kv_, put back", "", 2 * kv_bytes // 8, False, put, eager_put),
    ]
    for codec in ("bf16", "e4m3", "e5m2"):
        payload = ops.archive_kv(k, v, cos, sin, 0, tokens, PAGE, codec)
        out = torch.from_numpy(staging.acquire(payload.numel()).array).to(device)
        page_bytes = payload.numel() // (tokens // PAGE)
        places = torch.tensor([[i * page_bytes, PAGE, 0, PAGE, i * PAGE, i * PAGE] for i in range(tokens // PAGE)])

        def eager_restore(payload: torch.Tensor = payload, codec: str = codec) -> None:
            angles = at.double()[:, None] * inv_freq
            keys, values = decode(payload, geometry, codec)
            k.copy_(rotate(keys, angles.cos().float(), angles.sin().float()))
            v.copy_(values)

        moved = kv_bytes + payload.numel()
        found += [
            # As the frame archives, into memory that was used before; and into a new tensor.
            Case(
                "archive_kv",
                codec,
                moved,
                False,
                lambda out=out, codec=codec: ops.archive_kv(k, v, cos, sin, 0, tokens, PAGE, codec, out=out),
                lambda codec=codec: encode(unrotate(k, cos, sin), v, codec),
            ),
            Case(
                "archive_kv, new",
                codec,
                moved,
                True,
                lambda codec=codec: ops.archive_kv(k, v, cos, sin, 0, tokens, PAGE, codec),
                lambda codec=codec: encode(unrotate(k, cos, sin), v, codec),
            ),
            Case(
                "restore_kv",
                codec,
                moved,
                False,
                lambda payload=payload, places=places, codec=codec: ops.restore_kv(
                    payload, places, k, v, cos, sin, PAGE, codec, inv_freq
                ),
                eager_restore,
            ),
            Case(
                "encode_kv",
                codec,
                moved,
                True,
                lambda codec=codec: ops.encode_kv(k, v, PAGE, codec),
                lambda codec=codec: encode(k, v, codec),
            ),
            Case(
                "decode_kv",
                codec,
                moved,
                True,
                lambda payload=payload, codec=codec: ops.decode_kv(
                    payload, layers, heads, tokens, dim, PAGE, codec, torch.bfloat16
                ),
                lambda payload=payload, codec=codec: [x.bfloat16() for x in decode(payload, geometry, codec)],
            ),
        ]
    return found


# --- measuring


class Memcpy:
    """Copies half of `moved` bytes, which moves all of them."""

    def __init__(self, moved: int, fresh: bool, device: torch.device) -> None:
        self.source = torch.ones(moved // 2, dtype=torch.uint8, device=device)
        self.target = None if fresh else torch.ones_like(self.source)

    def __call__(self) -> None:
        target = torch.empty_like(self.source) if self.target is None else self.target
        if target.is_cuda:
            target.copy_(self.source)
            return
        count = torch.get_num_threads()
        bounds = [self.source.numel() * i // count for i in range(count + 1)]
        to, source = target.data_ptr(), self.source.data_ptr()
        memcpy([(to + first, source + first, end - first) for first, end in itertools.pairwise(bounds)])


def seconds(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def measure(case: Case, geometry: Geometry, device: torch.device, rounds: int) -> Row:
    memcpy, memcpy_to_new = (Memcpy(case.moved, fresh, device) for fresh in (False, True))
    ours: list[float] = []
    copies: list[float] = []
    copies_to_new: list[float] = []
    eager: list[float] = []
    with torch.inference_mode():
        for i in range(rounds + 1):
            timed = [seconds(run, device) for run in (case.run, memcpy, memcpy_to_new)]
            if i > 0:  # the first warms up
                for kept, second in zip((ours, copies, copies_to_new), timed, strict=True):
                    kept.append(second)
        while not eager or (len(eager) < rounds and sum(eager) < 1.0):
            eager.append(seconds(case.eager, device))
    mine = statistics.median(ours)
    return Row(
        geometry.name,
        case.operator,
        case.codec,
        1e3 * mine,
        case.moved / mine / 1e9,
        statistics.median(copies) / mine,
        statistics.median(copies_to_new) / mine if case.fresh else None,
        statistics.median(eager) / mine,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--model", choices=[g.name for g in GEOMETRIES], help="one geometry only")
    parser.add_argument("--tokens", default=4096, type=int, help="tokens, a multiple of 64 above 512")
    parser.add_argument("--threads", default=torch.get_num_threads(), type=int)
    parser.add_argument("--rounds", default=9, type=int)
    parser.add_argument("--json", type=Path, help="file to write the rows to, too")
    options = parser.parse_args()
    if options.tokens % PAGE != 0 or options.tokens <= 8 * PAGE:
        raise SystemExit(f"--tokens is {options.tokens}; expected a multiple of {PAGE} above {8 * PAGE}")
    torch.set_num_threads(options.threads)

    # Off a terminal rich would fold the table at 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 120)
    on = torch.cuda.get_device_name(options.device) if options.device.type == "cuda" else processor()
    about = f"{on}, {options.threads} threads; {options.tokens} tokens, bfloat16, pages of {PAGE}"
    table = Table(
        "model", "operator", "codec", "ms", "GB/s", "of memcpy", "to new", "x eager", title=about, title_justify="left"
    )
    rows = []
    with console.status("") as status:
        for geometry in [g for g in GEOMETRIES if options.model in (None, g.name)]:
            for case in cases(geometry, options.tokens, options.device):
                status.update(f"{geometry.name} {case.operator} {case.codec}")
                row = measure(case, geometry, options.device, options.rounds)
                rows.append(row)
                table.add_row(
                    row.geometry,
                    row.operator,
                    row.codec,
                    f"{row.milliseconds:.1f}",
                    f"{row.gigabytes_per_second:.1f}",
                    f"{row.of_memcpy:.2f}",
                    "" if row.of_memcpy_to_new is None else f"{row.of_memcpy_to_new:.2f}",
                    f"{row.times_eager:.1f}",
                )
    console.print(table)
    if options.json:
        machine = {"device": on, "threads": options.threads, "torch": torch.__version__}
        result = {**machine, "tokens": options.tokens, "rows": [dataclasses.asdict(row) for row in rows]}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
