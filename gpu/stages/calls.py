"""Every kv operator once, over a frame, with arguments that reach all of its code: what `operators` compares."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from everlong import ops
from stages.frames import Frame, phases_of

# (source, target, count, delta) of shifts in a frame of 300 slots: apart, overlapping by more and by less than what a
# GPU moves directly, both ways, in place, and without a turn.
SHIFTS = ((200, 0, 90, -200), (0, 100, 200, 100), (1, 0, 299, -1), (0, 3, 297, 3), (5, 5, 90, 7), (9, 4, 100, 0))
LAYOUTS = ("contiguous", "token-major", "sliced", "every other number")


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of an operator. run(frame) writes to the frame that it is given, and returns the results."""

    operator: str
    what: str  # its arguments in words
    run: Callable[[Frame], list[torch.Tensor]]
    angles: bool = False  # whether a GPU computes cos and sin itself, whose last bit in fp64 may differ


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return the same numbers with other strides."""
    if layout == "token-major":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "sliced":
        return torch.nn.functional.pad(tensor, (0, 0, 3, 2, 1, 0))[:, 1:, 3:-2]
    if layout == "every other number":
        return tensor.repeat_interleave(2, -1)[..., ::2]
    return tensor.contiguous()


def full_phase(half: torch.Tensor, *, side_by_side: bool = False) -> torch.Tensor:
    """Return cos or sin [F, R] as a model's rotary embedding gives it, with both numbers of a pair."""
    return half.repeat_interleave(2, -1) if side_by_side else torch.cat((half, half), -1)


def new_positions(slots: int) -> torch.Tensor:
    return torch.arange(slots) * 33_000 + 7


def derotate(layout: str, phases_on_host: bool, side_by_side: bool) -> Call:
    def run(frame: Frame) -> list[torch.Tensor]:
        # Without a copy from the device, which would wait for it.
        halves = phases_of(frame.table, frame.slots) if phases_on_host else (frame.cos, frame.sin)
        pairs = side_by_side and frame.table.interleaved
        cos, sin = (full_phase(half, side_by_side=pairs) for half in halves)
        k, v = (laid_out(tensor, layout) for tensor in (frame.k, frame.v))
        return list(ops.derotate_kv(k, v, cos, sin, frame.table.interleaved))

    return Call("derotate_kv", layout, run)


def rerotate(layout: str, positions_on_host: bool) -> Call:
    def run(frame: Frame) -> list[torch.Tensor]:
        table, at = frame.table, new_positions(frame.slots)
        at = at if positions_on_host else at.to(frame.k.device)
        k, v = (laid_out(tensor, layout) for tensor in (frame.k, frame.v))
        return list(ops.rerotate_kv(k, v, at, table.inv_freq, table.attention_scaling, table.interleaved))

    return Call("rerotate_kv", layout, run, angles=True)


def shift(source: int, target: int, count: int, delta: int) -> Call:
    def run(frame: Frame) -> list[torch.Tensor]:
        table = frame.table
        ops.shift_kv_(*frame.buffers, source, target, count, delta, table.inv_freq, table.interleaved)
        return list(frame.buffers)

    return Call("shift_kv_", f"{source} to {target}, {count} slots, delta {delta}", run)


def gather_arguments(slots: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return sources, targets and positions of half of the slots."""
    generator = torch.Generator().manual_seed(0)
    sources, targets = (torch.randperm(slots, generator=generator)[: slots // 2] for _ in range(2))
    return sources, targets, torch.randint(0, 1 << 20, (slots // 2,), generator=generator)


def other_frame(frame: Frame) -> Frame:
    """Return the frame to gather from: the same slots, last slot first."""
    return Frame(frame.table, frame.k.flip(2), frame.v.flip(2), frame.cos.flip(0), frame.sin.flip(0))


def gather(arguments_on_host: bool) -> Call:
    def run(frame: Frame) -> list[torch.Tensor]:
        table, device = frame.table, frame.k.device
        sources, targets, positions = (
            tensor if arguments_on_host else tensor.to(device) for tensor in gather_arguments(frame.slots)
        )
        scaling, interleaved = table.attention_scaling, table.interleaved
        from_where = (*other_frame(frame).buffers, sources)
        ops.gather_kv_(*from_where, *frame.buffers, targets, positions, table.inv_freq, scaling, interleaved)
        return list(frame.buffers)

    return Call("gather_kv_", "arguments on the host" if arguments_on_host else "arguments on the device", run)


FIRST, TOKENS = 11, 213  # slots to archive: whole pages and a part of one


def archived(frame: Frame, codec: str, page: int) -> torch.Tensor:
    return ops.archive_kv(*frame.buffers, FIRST, TOKENS, page, codec, frame.table.interleaved)


def archive(codec: str, page: int) -> Call:
    def run(frame: Frame) -> list[torch.Tensor]:
        made = archived(frame, codec, page)
        out = torch.full_like(made, 0xEE)
        ops.archive_kv(*frame.buffers, FIRST, TOKENS, page, codec, frame.table.interleaved, out=out)
        return [made, out]

    return Call("archive_kv", f"{codec}, pages of {page}", run)


def placements(frame: Frame, codec: str, page: int) -> torch.Tensor:
    """Return int64 [3, 6]: a whole page, the end of another, and a piece of the last, which is not full."""
    layers, heads, _, head_dim = frame.k.shape
    page_bytes = ops.payload_bytes(page, page, layers, heads, head_dim, codec)
    last = TOKENS // page
    rows = [
        [last * page_bytes, TOKENS - last * page, 2, 9, 280, 1_000_000],
        [0, page, 0, page, 3, 0],
        [(last - 1) * page_bytes, page, page - 4, 4, 299 - 4, 5],
    ]
    return torch.tensor(rows)


def restore(codec: str, page: int) -> Call:
    def run(frame: Frame) -> list[torch.Tensor]:
        table = frame.table
        payload, places = archived(frame, codec, page), placements(frame, codec, page)
        scaling, interleaved = table.attention_scaling, table.interleaved
        ops.restore_kv(payload, places, *frame.buffers, page, codec, table.inv_freq, scaling, interleaved)
        return list(frame.buffers)

    return Call("restore_kv", f"{codec}, pages of {page}", run, angles=True)


def encode(codec: str, page: int, tokens: int, layout: str) -> Call:
    def run(frame: Frame) -> list[torch.Tensor]:
        k, v = (laid_out(tensor, layout)[:, :, :tokens] for tensor in (frame.k, frame.v))
        return [ops.encode_kv(k, v, page, codec)]

    return Call("encode_kv", f"{codec}, pages of {page}, {tokens} tokens, {layout}", run)


def decode(codec: str, page: int, tokens: int) -> Call:
    def run(frame: Frame) -> list[torch.Tensor]:
        layers, heads, _, head_dim = frame.k.shape
        payload = ops.encode_kv(frame.k[:, :, :tokens], frame.v[:, :, :tokens], page, codec)
        return list(ops.decode_kv(payload, layers, heads, tokens, head_dim, page, codec, frame.k.dtype))

    return Call("decode_kv", f"{codec}, pages of {page}, {tokens} tokens", run)


def rotation_calls() -> list[Call]:
    """Return the calls without a codec."""
    found = [derotate(layout, on_host, layout == "contiguous") for layout in LAYOUTS for on_host in (False, True)]
    found += [rerotate(layout, on_host) for layout in LAYOUTS for on_host in (False, True)]
    return [*found, *(shift(*arguments) for arguments in SHIFTS), gather(True), gather(False)]


def codec_calls(codec: str, pages: tuple[int, ...] = (64, 128)) -> list[Call]:
    found = [make(codec, page) for page in pages for make in (archive, restore)]
    for tokens, layout in zip((300, 64, 1, 0), LAYOUTS, strict=True):
        found += [encode(codec, 64, tokens, layout), decode(codec, 64, tokens)]
    return found


def plain_calls() -> list[Call]:
    """Return one call of each operator and codec, for a slow tool to run."""
    found = [derotate("contiguous", True, False), rerotate("contiguous", True), gather(True)]
    found += [shift(*arguments) for arguments in SHIFTS[:4]]
    for codec in ops.CODECS:
        found += [archive(codec, 64), restore(codec, 64), encode(codec, 64, 64, "contiguous"), decode(codec, 64, 64)]
    return found
