"""python -m stages.kernels_once DEVICE: every kernel over tiny inputs, for compute-sanitizer.

Inputs come from the host, and the results must be the CPU's.
"""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import torch

import everlong._core as _core
from everlong import ops
from stages import calls
from stages.differences import Differences, refusal
from stages.frames import Frame, random_frame, rope_of
from stages.indexes import GROUP, HEADS, MEANING_DIM, PACK, index_memory, page_scores

CPU = torch.device("cpu")
DONE = "kernels once: all as on the CPU"


def frames() -> list[tuple[str, Frame]]:
    """Return frames with whole vectors of every type, rows that are none, and interleaved pairs."""
    made = [(str(dtype), random_frame(dtype, 64, rope_of(32))) for dtype in (torch.float32, torch.float16)]
    made += [("bfloat16, interleaved", random_frame(torch.bfloat16, 64, rope_of(64, interleaved=True)))]
    made += [("odd rows", random_frame(torch.bfloat16, 21, rope_of(14)))]
    return [*made, ("odd rows, interleaved", random_frame(torch.float32, 21, rope_of(14, interleaved=True)))]


def operators(device: torch.device, unlike: Differences) -> None:
    for what, frame in frames():
        for call in calls.plain_calls():
            with unlike.combination(f"{call.operator} {call.what}, {what}"):
                got, want = (call.run(frame.to(where)) for where in (device, CPU))
                unlike.require_same(got, want, angles=call.angles)
    bad = random_frame(torch.bfloat16, 64, rope_of(64)).to(device)
    bad.k[1, 2, 50, 13] = torch.nan
    for codec in ops.CODECS:
        with unlike.combination(f"NaN, {codec}"):
            said = refusal(partial(ops.archive_kv, *bad.buffers, 0, 128, 64, codec))
            assert "layer 1, head 2" in said, said


def indexes(device: torch.device, unlike: Differences) -> None:
    gpu = {} if device == CPU else {"device": device.index, "device_bytes": 1 << 26}
    for head_dim in (64, 21):
        rng = np.random.default_rng(head_dim)
        memory, _, _ = index_memory(head_dim, rng)
        for storage in ("bf16", "int8", "e4m3"):
            with unlike.combination(f"heads {storage}, head {head_dim}"):
                q = rng.standard_normal((3, len(HEADS), head_dim)).astype(np.float32)
                scores = []
                for where in ({}, gpu):
                    memory.index.set_retrieval_heads(HEADS, keys=storage, **where)
                    found = page_scores(memory, "heads", token_ids=np.arange(3, dtype=np.int32), head_queries=q)
                    scores.append(list(found.values()))
                np.testing.assert_allclose(scores[1], scores[0], rtol=1e-4)
                assert memory.index.take_messages() == []
    with unlike.combination("meaning"):
        rows = rng.standard_normal((17, MEANING_DIM)).astype(np.float32)
        said = []
        for where in ({}, gpu):
            memory.index.set_meaning(PACK, MEANING_DIM, GROUP, part="meaning", **where)
            said.append(page_scores(memory, "meaning", token_ids=np.zeros(0, np.int32), meaning_query=rows))
        assert said[0] == said[1]
        assert memory.index.take_messages() == []
    memory.close()


def transfer(device: torch.device) -> None:
    """Copy bytes there and back."""
    engine = _core.TransferEngine(device.index if device.type == "cuda" else None, 1 << 20)
    sent = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8)
    there = torch.empty(len(sent), dtype=torch.uint8, device=device)
    buffer = engine.acquire(len(sent))
    buffer.array[:] = sent
    engine.wait(engine.to_device(buffer, there.data_ptr()))
    back = engine.acquire(len(sent))
    engine.wait(engine.to_host(back, there.data_ptr()))
    assert np.array_equal(back.array, sent), "bytes came back changed"


def main() -> None:
    device = torch.device(sys.argv[1])
    torch.set_num_threads(1)  # the inputs are tiny
    unlike = Differences()
    operators(device, unlike)
    indexes(device, unlike)
    with unlike.combination("transfer"):
        transfer(device)
    unlike.raise_any()
    print(DONE, flush=True)


if __name__ == "__main__":
    main()
