"""The heads index searched on a GPU finds what the CPU's scan does."""

from __future__ import annotations

import numpy as np
import pytest

import everlong
import everlong._core as _core
from support import SMALL, byte_tokenizer, random_text, tiny_model
from support.gpu import GPU, NEEDS_GPU
from support.native import DIM, HEADS, Written, fill, manifest

pytestmark = NEEDS_GPU
ENOUGH = 1 << 28


@pytest.mark.parametrize("keys", ["bf16", "int8", "e4m3"])
def test_the_gpu_finds_what_the_cpu_does(keys: str) -> None:
    on_cpu, on_gpu = (_core.Memory.create(None, manifest()) for _ in range(2))
    fill(on_cpu, 20)
    fill(on_gpu, 20)
    on_cpu.index.set_retrieval_heads(HEADS, keys=keys)
    on_gpu.index.set_retrieval_heads(HEADS, keys=keys, device=GPU.index, device_bytes=ENOUGH)
    late = fill_later(on_cpu), fill_later(on_gpu)  # pages come one by one too
    assert late[0] == late[1]
    for memory in (on_cpu, on_gpu):
        memory.blocks.forget([3, 11])
    rng = np.random.default_rng(4)
    for question in range(30):
        q = 4 * rng.standard_normal((1 + question % 9, len(HEADS), DIM)).astype(np.float32)
        ids = rng.integers(0, 50, len(q)).astype(np.int32)
        sources = ["odd"] if question % 3 == 0 else []
        want, got = (
            memory.search.find(token_ids=ids, head_queries=q, kinds=["heads"], max_groups=100, sources=sources)
            for memory in (on_cpu, on_gpu)
        )
        assert [group.pages for group in got.groups] == [group.pages for group in want.groups]
        scores = [[group.score for group in result.groups] for result in (got, want)]
        np.testing.assert_allclose(scores[0], scores[1], rtol=1e-4)
    assert on_gpu.index.device_use("heads")[1] == 30
    assert on_gpu.index.take_messages() == []


def test_keys_that_do_not_fit_are_searched_on_the_host() -> None:
    memory = _core.Memory.create(None, manifest())
    fill(memory, 20)
    memory.index.set_retrieval_heads(HEADS, device=GPU.index, device_bytes=1000)
    q = np.ones((1, len(HEADS), DIM), dtype=np.float32)
    assert memory.search.find(token_ids=np.array([1], dtype=np.int32), head_queries=q, kinds=["heads"]).groups
    assert memory.index.device_use("heads") == (0, 0)
    (message,) = memory.index.take_messages()
    assert "do not fit in the 1000" in message


def test_a_model_on_the_gpu_is_searched_there() -> None:
    with everlong.MemoryModel(tiny_model().to(GPU), byte_tokenizer(), config=SMALL) as mm:
        text = "".join(random_text(64, seed=i) for i in range(100))
        mm.read(text)
        assert mm.recall(text[1000:1030])
        held, scans = mm.memory.core.index.device_use("heads")
        assert 0 < held <= mm.config.search.heads_device_bytes
        assert scans > 0


def fill_later(memory: _core.Memory) -> list[int]:
    """Two blocks more, behind those of `fill`."""
    rng = np.random.default_rng(9)
    return [Written(rng, stream, 1000, 10, "late").append_to(memory) for stream in (0, 1)]
