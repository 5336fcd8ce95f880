"""The vectors of meaning searched on a GPU have the scores of the CPU's scan, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.gpu import GPU, NEEDS_GPU
from support.meaning import DIM, GROUP, LENGTHS, NO_TOKENS, PACK, TENSOR, codes_for, new_memory

pytestmark = NEEDS_GPU
ENOUGH = 1 << 24


def test_the_gpu_says_what_the_cpu_does() -> None:
    rng = np.random.default_rng(5)
    codes: list[Any] = [codes_for(tokens, rng) for tokens in LENGTHS]
    on_cpu, on_gpu = (new_memory(None, [None, *codes[1:]]) for _ in range(2))
    on_cpu.index.set_meaning(PACK, DIM, GROUP)
    on_gpu.index.set_meaning(PACK, DIM, GROUP, device=GPU.index, device_bytes=ENOUGH)
    for memory in (on_cpu, on_gpu):
        memory.blocks.put_tensors(1, {TENSOR: codes[0]})  # late
        memory.blocks.put_tensors(4, {TENSOR: codes_for(LENGTHS[3], np.random.default_rng(6))})  # anew
        memory.blocks.forget([3])
    for tokens in (1, 5, 16, 17, 70):
        rows = rng.standard_normal((tokens, DIM)).astype(np.float32)
        want, got = (
            memory.search.rankings(1000, token_ids=NO_TOKENS, meaning_query=rows, kinds=["meaning"])
            for memory in (on_cpu, on_gpu)
        )
        assert [ranking.pages for ranking in got] == [ranking.pages for ranking in want]
        assert [ranking.scores for ranking in got] == [ranking.scores for ranking in want]
    assert on_gpu.index.device_use("meaning")[1] == 5
    assert on_gpu.index.take_messages() == []


def test_vectors_that_do_not_fit_are_searched_on_the_host() -> None:
    rng = np.random.default_rng(7)
    memory = new_memory(None, [codes_for(tokens, rng) for tokens in LENGTHS])
    memory.index.set_meaning(PACK, DIM, GROUP, device=GPU.index, device_bytes=100)
    rows = np.ones((1, DIM), dtype=np.float32)
    assert memory.search.find(token_ids=NO_TOKENS, meaning_query=rows, kinds=["meaning"]).groups
    assert memory.index.device_use("meaning") == (0, 0)
    (message,) = memory.index.take_messages()
    assert "do not fit in the 100" in message
