"""Copies that share RAM until they are written to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import everlong
from everlong.frame.kv_frame import KvFrame
from everlong.kv_cache.copy_on_write import copy_on_write
from support import SMALL, byte_tokenizer, deep_model, random_text

USED = slice(10, 900)


def written_bytes() -> int:
    """Bytes of frames' copies that this process has for itself, because it wrote to them."""
    written, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            ours = "memfd:everlong-frame" in line
        elif first == "Anonymous:" and ours:
            written += 1024 * int(rest[0])
    return written


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_copy_is_its_own(dtype: torch.dtype) -> None:
    x = torch.randn(3, 2, 1000, 16).to(dtype)
    before = x.clone()
    first, second, third = copy_on_write(x, USED, 3)
    for one in (first, second, third):
        assert torch.equal(one[:, :, USED], before[:, :, USED])
        assert not one[:, :, : USED.start].any()
        assert not one[:, :, USED.stop :].any()
    x.zero_()
    first[:, :, 100:200] = 7
    second[1, 1, 999] = 9
    assert torch.equal(third[:, :, USED], before[:, :, USED])
    assert (first[:, :, 100:200] == 7).all()
    assert torch.equal(first[:, :, 200:900], before[:, :, 200:900])
    assert not first[:, :, 900:].any()
    assert torch.equal(second[:, :, USED], before[:, :, USED])
    assert (second[1, 1, 999] == 9).all()
    assert not x.any()


def test_a_copy_takes_what_is_written_to_it() -> None:
    x = torch.ones(4, 2, 4096, 64)  # a head's slots are a megabyte
    before = written_bytes()
    copies = copy_on_write(x, slice(0, 4096), 8)
    assert sum(float(one.sum()) for one in copies) == 8 * x.numel()
    assert written_bytes() == before
    copies[5][:, :, 1024:2048] = 2
    assert written_bytes() - before == x.numel()  # a quarter of it, in bytes
    del copies
    assert written_bytes() == before


def test_a_fork_takes_what_it_changed() -> None:
    """Some tokens in each fork are some pages in each head of each layer, and not a frame."""
    with everlong.MemoryModel(deep_model(), byte_tokenizer(), config=SMALL) as mm:
        mm.read(random_text(1500))
        frame = mm.frame
        assert isinstance(frame, KvFrame)
        before = written_bytes()
        forks = frame.forks(4)
        assert written_bytes() == before
        with torch.no_grad():
            for fork in forks:
                fork.extend(torch.arange(8), "prompt")
        served = frame.served
        slabs = 2 * served.layers * served.kv_heads
        # Eight tokens touch one or two pages of each head's keys and values.
        assert 0 < written_bytes() - before <= 4 * slabs * 2 * 4096
        assert written_bytes() - before < 4 * frame.cache.buffers.nbytes() / 4
        for fork in forks:
            fork.detach()
