"""Payload bytes between memory and device: the engine over its worker thread, and what the frame makes of it."""

from __future__ import annotations

import gc
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everlong
import everlong._core as _core
from everlong import ops
from everlong.frame.executor import Done, Executor
from everlong.frame.transfer import BATCH_BYTES, PayloadTransfer
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.transfer import archive, store_beside

CPU = torch.device("cpu")


def random_bytes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def test_engine_copies_there_and_back() -> None:
    engine = _core.TransferEngine(device=None, pool_bytes=1 << 20)
    device = torch.zeros(100_000, dtype=torch.uint8)
    for seed in range(5):
        sent = random_bytes(100_000, seed)
        there = engine.acquire(100_000)
        there.array[:] = sent
        engine.wait(engine.to_device(there, device.data_ptr()))
        assert np.array_equal(device.numpy(), sent)
        back = engine.acquire(100_000)
        engine.wait(engine.to_host(back, device.data_ptr()))
        assert np.array_equal(back.array, sent)


def test_array_keeps_its_buffer_and_the_pool_is_bounded() -> None:
    engine = _core.TransferEngine(device=None, pool_bytes=1 << 20)
    array = engine.acquire(1 << 20).array
    gc.collect()
    with pytest.raises(everlong.CapacityError, match="not handed over"):
        engine.acquire(1)
    array[:] = 7
    del array
    gc.collect()
    assert len(engine.acquire(1).array) == 1
    with pytest.raises(everlong.CapacityError, match="1048577 bytes asked of a pool of 1048576"):
        engine.acquire((1 << 20) + 1)
    with pytest.raises(ValueError, match="pool_bytes is 0"):
        _core.TransferEngine(device=None, pool_bytes=0)


def test_on_the_host_nothing_is_copied() -> None:
    transfer = PayloadTransfer(CPU, 1000, 100_000)
    staged = transfer.stage(1000)
    with transfer.on_device(staged) as payload:
        assert payload.data_ptr() == staged.array.ctypes.data
    sent = torch.from_numpy(random_bytes(1000))
    archived = archive(transfer, sent)
    assert isinstance(archived, _core.StagingBuffer)
    assert np.array_equal(archived.array, sent.numpy())


def test_large_payloads_come_back_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlong.frame.transfer.BATCH_BYTES", 100_000)
    transfer = PayloadTransfer(CPU, 1000, 100_000, copies=True)
    payload = torch.from_numpy(random_bytes(1_234_567))
    archived = archive(transfer, payload)
    assert isinstance(archived, np.ndarray)  # more than the pool has
    assert np.array_equal(archived, payload.numpy())
    small = archive(transfer, payload[:90_000])
    assert isinstance(small, _core.StagingBuffer)
    assert np.array_equal(small.array, payload[:90_000].numpy())
    staged = transfer.stage(100_000)
    staged.array[:] = payload[:100_000].numpy()
    with transfer.on_device(staged) as copied:
        assert copied.data_ptr() != staged.array.ctypes.data
        assert torch.equal(copied, payload[:100_000])


def test_a_payload_on_the_device_is_nobody_elses_until_it_was_used() -> None:
    transfer = PayloadTransfer(CPU, 1000, copies=True)

    def staged(value: int) -> _core.StagingBuffer:
        buffer = transfer.stage(1000)
        buffer.array[:] = value
        return buffer

    with (  # more at once than are kept
        transfer.on_device(staged(1)) as first,
        transfer.on_device(staged(2)) as second,
        transfer.on_device(staged(3)) as third,
    ):
        assert [int(payload.sum()) for payload in (first, second, third)] == [1000, 2000, 3000]
    places = set()
    for value in range(10):
        with transfer.on_device(staged(value)) as payload:
            assert bool((payload == value).all())
            places.add(payload.data_ptr())
    assert places == {payload.data_ptr() for payload in (first, second, third)}
    with pytest.raises(KeyError), transfer.on_device(staged(4)):
        raise KeyError  # it is free again, whatever happens to its user
    for value in range(3):
        with transfer.on_device(staged(value)) as payload:
            assert payload.data_ptr() in places


@pytest.mark.parametrize("copies", [False, True])
def test_batches_find_room_however_many_blocks_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch, copies: bool) -> None:
    monkeypatch.setattr("everlong.frame.transfer.BATCH_BYTES", 100_000)
    transfer = PayloadTransfer(CPU, 1000, 300_000, copies=copies)
    sent = [torch.from_numpy(random_bytes(300_000, seed)) for seed in range(10)]
    waiting = [archive(transfer, values) for values in sent]
    for values, held in zip(sent, waiting, strict=True):
        assert np.array_equal(held.array if isinstance(held, _core.StagingBuffer) else held, values.numpy())
    assert isinstance(waiting[0], _core.StagingBuffer)
    assert isinstance(waiting[-1], np.ndarray)
    assert len([transfer.stage(100_000) for _ in range(4)]) == 4


def test_what_is_archived_is_written_from_its_buffer_which_then_serves_again(tmp_path: Path) -> None:
    """More blocks than the pool holds, through one memory: each is what was archived."""
    manifest = _core.Manifest(
        weights="w", rope="r", tokenizer="t", layers=1, kv_heads=1, head_dim=512, page_tokens=64, codec="bf16"
    )
    memory = _core.Memory.create(str(tmp_path / "m"), manifest, host_bytes=0)
    size = 2 * 2 * 64 * 512
    engine = _core.TransferEngine(device=None, pool_bytes=4 * size)
    blocks, copied = [], 0
    for index in range(40):
        values = torch.full((size // 2,), index + 1.0, dtype=torch.bfloat16)
        staged = engine.try_acquire(size)
        payload: np.ndarray | _core.StagingBuffer = values.view(torch.uint8).numpy()
        if staged is None:  # all are waiting for the disk
            copied += 1
        else:
            staged.array[:] = payload
            payload = staged
        blocks.append(
            memory.blocks.append(
                stream=0,
                begin=64 * index,
                end=64 * index + 64,
                sink_tokens=0,
                source="",
                created_at=0.0,
                tags=[],
                token_ids=np.zeros(64, dtype=np.int32),
                payload=payload,
            )
        )
        del staged, payload
    memory.upkeep.flush()
    assert copied < 40
    assert engine.try_acquire(4 * size) is not None, "every buffer is back in the pool"
    out = np.zeros(size, dtype=np.uint8)
    for index, page in enumerate(memory.blocks.pages()):
        memory.blocks.read_pages([page], out)
        assert (torch.from_numpy(out).view(torch.bfloat16) == index + 1).all()
    memory.close()


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("batch_bytes", [BATCH_BYTES, 60_000])
def test_recall_is_the_same_however_pages_travel(
    monkeypatch: pytest.MonkeyPatch, copies: bool, batch_bytes: int
) -> None:
    """Pages in one batch or in several, through copies of the worker thread or none: the same frame, bit for bit."""

    def recalled() -> tuple[torch.Tensor, ...]:
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
            mm.read(random_text(900))
            mm.frame.recall(mm.memory.core.blocks.pages()[1:4])
            cache = mm.frame.cache
            return tuple(t.clone() for t in (cache.k, cache.v, cache.cos, cache.sin))

    expected = recalled()
    monkeypatch.setattr("everlong.frame.transfer.BATCH_BYTES", batch_bytes)
    made = store_beside(monkeypatch, copies)
    for got, want in zip(recalled(), expected, strict=True):
        assert torch.equal(got, want)
    assert made


def test_a_model_on_a_device_without_operators_is_refused() -> None:
    with pytest.raises(everlong.UnsupportedModelError, match="it lies on meta, and this everlong was built without"):
        everlong.MemoryModel(tiny_model().to("meta"), byte_tokenizer(), config=SMALL)


def test_a_model_on_two_devices_is_refused() -> None:
    model = tiny_model()
    model.model.layers[1].to("meta")
    with pytest.raises(everlong.UnsupportedModelError, match=r"its layers lie on \['cpu', 'meta'\]"):
        everlong.MemoryModel(model, byte_tokenizer(), config=SMALL)


def test_the_next_chunk_is_computed_while_a_block_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is stored is what is stored at once, told in the same order."""

    def read(mm: everlong.MemoryModel) -> list[object]:
        told: list[object] = []
        with mm.frame.observe(lambda block, span, ids, hidden: told.append((block, span, ids.tolist()))):
            mm.read(random_text(1500))
        pages = mm.memory.core.blocks.pages()
        for page in pages:
            out = np.zeros(mm.memory.core.page_bytes(page.end - page.begin), dtype=np.uint8)
            mm.memory.core.blocks.read_pages([page], out)
            told.append(out.tobytes())
        return told

    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        expected = read(mm)
    store_beside(monkeypatch)
    forwards, overtaken = threading.Semaphore(0), []
    append, do = _core.Blocks.append, Executor.do

    def append_late(blocks: _core.Blocks, **block: Any) -> int:
        if threading.current_thread() is not threading.main_thread():
            forwards.acquire(timeout=60)  # the next chunk's
            overtaken.append(block["begin"])
        return append(blocks, **block)

    def tell_and_do(executor: Executor, *given: Any, **named: Any) -> Done:
        for _ in executor._archive._pending._waiting:
            forwards.release()
        return do(executor, *given, **named)

    monkeypatch.setattr(_core.Blocks, "append", append_late)
    monkeypatch.setattr(Executor, "do", tell_and_do)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), config=SMALL) as mm:
        assert read(mm) == expected
    assert len(overtaken) > 5


def test_what_a_device_refused_is_raised_in_the_words_of_an_archive_that_waits() -> None:
    k = torch.randn(2, 3, 200, 16)
    v = torch.randn(2, 3, 200, 16)
    phase = torch.ones(200, 0)
    v[1, 2, 140, 5] = torch.inf
    with pytest.raises(RuntimeError) as caught:
        ops.archive_kv(k, v, phase, phase, 20, 170, 64, "e4m3")
    page, token = divmod(140 - 20, 64)
    side = 2 * ((page * 2 + 1) * 3 + 2) + 1  # of page, layer and head: values
    index = (side * 64 + token) * 16 + 5
    refused = torch.from_numpy(np.frombuffer(struct.pack("<Qf4x", index, float("inf")), dtype=np.uint8).copy())
    with pytest.raises(RuntimeError) as later:
        ops.require_archived(refused, k.shape, 20, 64, "e4m3")
    assert str(later.value) == str(caught.value)
    out, nothing = ops.archive_kv(k, k + 1, phase, phase, 20, 170, 64, "e4m3"), torch.zeros(16, dtype=torch.uint8)
    assert ops.archive_kv(k, k + 1, phase, phase, 20, 170, 64, "e4m3", out=out.clone(), refused=nothing).equal(out)
    ops.require_archived(nothing, k.shape, 20, 64, "e4m3")
    with pytest.raises(RuntimeError, match=r"refused is Byte \[15\] on the CPU; expected contiguous uint8 \[16\]"):
        ops.archive_kv(k, k + 1, phase, phase, 20, 170, 64, "e4m3", out=out, refused=nothing[1:])
