"""Every operator on a GPU equals the CPU's, bit for bit, and refuses what the CPU refuses, in the same words."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import everlong
import everlong._core as _core
from everlong import ops
from everlong.frame.transfer import BATCH_BYTES, PayloadTransfer
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.gpu import GPU, NEEDS_GPU
from support.transfer import archive

pytestmark = NEEDS_GPU
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
LAYERS, HEADS, SLOTS = 3, 2, 700


@dataclasses.dataclass
class FrameTensors:
    """The buffers of a frame, and its RoPE."""

    k: torch.Tensor
    v: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    inv_freq: torch.Tensor
    scaling: float = 1.1386294

    def copy_to(self, device: torch.device) -> FrameTensors:
        moved = (t.to(device, copy=True) for t in (self.k, self.v, self.cos, self.sin))
        return FrameTensors(*moved, self.inv_freq, self.scaling)

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        return self.k, self.v, self.cos, self.sin


def frame_tensors(dtype: torch.dtype, head_dim: int = 64, rotary_dim: int = 64) -> FrameTensors:
    generator = torch.Generator().manual_seed(3)
    k, v = (torch.randn(LAYERS, HEADS, SLOTS, head_dim, generator=generator).to(dtype) for _ in range(2))
    inv_freq = 1e4 ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angles = torch.arange(1000, 1000 + SLOTS, dtype=torch.float64)[:, None] * inv_freq
    return FrameTensors(k, v, (angles.cos() * 1.1386294).float(), (angles.sin() * 1.1386294).float(), inv_freq)


def assert_same(gpu: FrameTensors, cpu: FrameTensors) -> None:
    for got, want in zip(gpu.buffers, cpu.buffers, strict=True):
        assert torch.equal(got.cpu(), want)


shapes = pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (128, 128), (64, 32), (21, 14), (48, 0)])
pairings = pytest.mark.parametrize("interleaved", [False, True])
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@dtypes
@shapes
@pairings
def test_derotate_and_rerotate(dtype: torch.dtype, head_dim: int, rotary_dim: int, interleaved: bool) -> None:
    frame = frame_tensors(dtype, head_dim, rotary_dim)
    k, v = frame.k[:, :, 5:300], frame.v[:, :, 5:300].flip(1)  # strides of a view
    cos, sin = (torch.cat((x, x), dim=-1)[5:300] for x in (frame.cos, frame.sin))
    want = ops.derotate_kv(k, v, cos, sin, interleaved)
    for control in (torch.device("cpu"), GPU):
        got = ops.derotate_kv(k.to(GPU), v.to(GPU), cos.to(control), sin.to(control), interleaved)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True))
    positions = torch.arange(295) * 33_000 + 7
    want = ops.rerotate_kv(k, v, positions, frame.inv_freq, frame.scaling, interleaved)
    got = ops.rerotate_kv(k.to(GPU), v.to(GPU), positions.to(GPU), frame.inv_freq, frame.scaling, interleaved)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True))


@dtypes
@shapes
@pairings
@pytest.mark.parametrize(
    ("source", "target", "count", "delta"),
    [(300, 0, 400, -300), (0, 100, 600, 100), (1, 0, 699, -1), (0, 3, 697, 3), (5, 5, 90, 7), (9, 4, 100, 0)],
)
def test_shift(
    dtype: torch.dtype,
    head_dim: int,
    rotary_dim: int,
    interleaved: bool,
    source: int,
    target: int,
    count: int,
    delta: int,
) -> None:
    cpu = frame_tensors(dtype, head_dim, rotary_dim)
    gpu = cpu.copy_to(GPU)
    for frame in (cpu, gpu):
        ops.shift_kv_(*frame.buffers, source, target, count, delta, frame.inv_freq, interleaved)
    assert_same(gpu, cpu)


@dtypes
@shapes
@pairings
def test_gather(dtype: torch.dtype, head_dim: int, rotary_dim: int, interleaved: bool) -> None:
    source, target = frame_tensors(dtype, head_dim, rotary_dim), frame_tensors(dtype, head_dim, rotary_dim)
    generator = torch.Generator().manual_seed(0)
    slots, rows = (torch.randperm(600, generator=generator)[:333] for _ in range(2))
    positions = torch.randint(0, 1 << 20, (333,), generator=generator)
    on_gpu = target.copy_to(GPU)
    for one, its_source in ((target, source), (on_gpu, source.copy_to(GPU))):
        ops.gather_kv_(
            *its_source.buffers, slots, *one.buffers, rows, positions, one.inv_freq, one.scaling, interleaved
        )
    assert_same(on_gpu, target)


@dtypes
@shapes
@pairings
@pytest.mark.parametrize("codec", ops.CODECS)
def test_archive_and_restore(dtype: torch.dtype, head_dim: int, rotary_dim: int, interleaved: bool, codec: str) -> None:
    cpu = frame_tensors(dtype, head_dim, rotary_dim)
    gpu = cpu.copy_to(GPU)
    want = ops.archive_kv(*cpu.buffers, 11, 333, 64, codec, interleaved)
    got = ops.archive_kv(*gpu.buffers, 11, 333, 64, codec, interleaved)
    written = torch.full_like(got, 0xEE)
    assert ops.archive_kv(*gpu.buffers, 11, 333, 64, codec, interleaved, out=written) is written
    assert torch.equal(written, got)
    assert torch.equal(got.cpu(), want)

    page = ops.payload_bytes(64, 64, LAYERS, HEADS, head_dim, codec)
    placements = torch.tensor([[5 * page, 13, 2, 9, 600, 1_000_000], [0, 64, 0, 64, 3, 0], [page, 64, 60, 4, 99, 5]])
    ops.restore_kv(want, placements, *cpu.buffers, 64, codec, cpu.inv_freq, cpu.scaling, interleaved)
    ops.restore_kv(got, placements, *gpu.buffers, 64, codec, gpu.inv_freq, gpu.scaling, interleaved)
    assert_same(gpu, cpu)


@dtypes
@pytest.mark.parametrize("codec", ops.CODECS)
@pytest.mark.parametrize("tokens", [0, 1, 64, 333])
def test_encode_and_decode(dtype: torch.dtype, codec: str, tokens: int) -> None:
    frame = frame_tensors(dtype)
    k, v = frame.k[:, :, :tokens], frame.v[:, :, :tokens]
    want = ops.encode_kv(k, v, 64, codec)
    got = ops.encode_kv(k.to(GPU), v.to(GPU), 64, codec)
    assert torch.equal(got.cpu(), want)
    sizes = (LAYERS, HEADS, tokens, 64, 64, codec, dtype)
    for on_gpu, on_cpu in zip(ops.decode_kv(got, *sizes), ops.decode_kv(want, *sizes), strict=True):
        assert torch.equal(on_gpu.cpu(), on_cpu)


@pytest.mark.parametrize("codec", ops.CODECS)
@pytest.mark.parametrize(("buffer", "value"), [(0, torch.nan), (1, torch.inf), (1, -torch.inf)])
def test_what_no_codec_holds_is_named(codec: str, buffer: int, value: float) -> None:
    cpu = frame_tensors(torch.float32)
    cpu.buffers[buffer][2, 1, 200, 63] = value
    cpu.buffers[buffer][2, 1, 400, 3] = value
    gpu = cpu.copy_to(GPU)
    messages = []
    for frame in (cpu, gpu):
        with pytest.raises(RuntimeError, match=r"layer 2, head 1") as caught:
            ops.archive_kv(*frame.buffers, 11, 600, 64, codec)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_what_is_refused_is_told_without_waiting_for_the_gpu() -> None:
    cpu = frame_tensors(torch.float32)
    want = ops.archive_kv(*cpu.buffers, 11, 600, 64, "e4m3")
    cpu.v[2, 1, 400, 3] = torch.nan
    gpu = cpu.copy_to(GPU)
    out, refused = torch.empty_like(want, device=GPU), torch.empty(ops.REFUSED_BYTES, dtype=torch.uint8, device=GPU)
    ops.archive_kv(*gpu.buffers, 11, 600, 64, "e4m3", out=out, refused=refused)
    messages = []
    for ask in (
        lambda: ops.archive_kv(*cpu.buffers, 11, 600, 64, "e4m3"),
        lambda: ops.require_archived(refused.cpu(), gpu.k.shape, 11, 64, "e4m3"),
    ):
        with pytest.raises(RuntimeError, match="layer 2, head 1") as caught:
            ask()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    gpu.v[2, 1, 400, 3] = frame_tensors(torch.float32).v[2, 1, 400, 3]
    ops.archive_kv(*gpu.buffers, 11, 600, 64, "e4m3", out=out, refused=refused)
    ops.require_archived(refused.cpu(), gpu.k.shape, 11, 64, "e4m3")
    assert torch.equal(out.cpu(), want)


def test_tensors_of_a_call_lie_on_one_device() -> None:
    frame = frame_tensors(torch.float32)
    gpu = frame.copy_to(GPU)
    with pytest.raises(RuntimeError, match=r"v is Float .* on the CPU; expected a tensor on cuda:0"):
        ops.archive_kv(gpu.k, frame.v, gpu.cos, gpu.sin, 0, 64, 64, "e4m3")
    with pytest.raises(RuntimeError, match=r"k is Float .* on the CPU; expected a tensor on the GPU"):
        ops.archive_kv(frame.k, gpu.v, gpu.cos, gpu.sin, 0, 64, 64, "e4m3")
    with pytest.raises(RuntimeError, match="span to archive: first 690, count 64"):
        ops.archive_kv(*gpu.buffers, 690, 64, 64, "e4m3")


def test_ops_follow_the_current_stream() -> None:
    cpu = frame_tensors(torch.bfloat16)
    want = ops.archive_kv(*cpu.buffers, 0, 640, 64, "e4m3")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gpu = cpu.copy_to(GPU)
        torch.cuda._sleep(20_000_000)
        gpu.k.mul_(1.0)
        got = ops.archive_kv(*gpu.buffers, 0, 640, 64, "e4m3")
    stream.synchronize()
    assert torch.equal(got.cpu(), want)


def test_payloads_travel_beside_the_current_stream() -> None:
    transfer = PayloadTransfer(GPU, 1 << 20, BATCH_BYTES)  # with room to archive what it reads
    for seed in range(30):  # more than the pool holds at once
        staged = transfer.stage(transfer.batch_bytes)
        staged.array[:] = seed
        with transfer.on_device(staged) as payload:
            del staged
            assert bool((payload == seed).all())
            archived = archive(transfer, payload)
        assert isinstance(archived, _core.StagingBuffer)
        assert (archived.array == seed).all()


def test_a_model_on_the_gpu_reads_archives_and_recalls() -> None:
    """The same frame as on the CPU but for the model's own rounding."""

    def logits_on(device: torch.device) -> torch.Tensor:
        with everlong.MemoryModel(tiny_model().to(device), byte_tokenizer(), config=SMALL) as mm:
            mm.read(random_text(900))
            mm.frame.recall(mm.memory.core.blocks.pages()[1:4])
            return mm.frame.extend(mm.encode(random_text(40, seed=2)), "read", logits=True).cpu()

    assert (logits_on(GPU) - logits_on(torch.device("cpu"))).abs().max() <= 1e-3
