"""A memory in RAM holds no more than `host_bytes`: payload, catalog, indexes, files."""

import subprocess
import sys

import numpy as np
import pytest

from everlong import _core

BUDGET = 32 << 20

# Fills a memory in RAM until it refuses, and says how much it took and how much the process grew by it.
SCRIPT = """
import gc, sys
from pathlib import Path
import numpy as np
import everlong._core as core
from everlong.errors import CapacityError

BUDGET, FILLED_BY = int(sys.argv[1]), sys.argv[2]
WITH_KV = FILLED_BY == "payload"


def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def memory(host_bytes):
    kv = {"layers": 2, "kv_heads": 2, "head_dim": 64} if WITH_KV else {"layers": 0, "kv_heads": 0, "head_dim": 0}
    made = core.Manifest(weights="w", rope="r", tokenizer="t", page_tokens=64, codec="fp32", **kv)
    return core.Memory.create(None, made, host_bytes)


def append(memory, number, draw):
    tokens = 512
    ids = draw.integers(0, 50_000, tokens).astype(np.int32) if FILLED_BY == "words" else np.full(tokens, 5, np.int32)
    tags = [f"{number} " + "x" * 20_000] if FILLED_BY == "tags" else []
    tensors = {"note": np.zeros(20_000, np.uint8)} if FILLED_BY == "tensors" else {}
    payload = np.zeros(memory.page_bytes(64) * (tokens // 64) if WITH_KV else 0, np.uint8)
    begin = number * tokens
    return memory.blocks.append(stream=0, begin=begin, end=begin + tokens, sink_tokens=0, source="", created_at=1.0,
                                tags=tags, token_ids=ids, payload=payload, tensors=tensors)


def fill(memory, draw):
    for number in range(100_000):
        try:
            block = append(memory, number, draw)
            if FILLED_BY == "added tags":
                memory.blocks.add_tags(block, [f"{number} " + "x" * 20_000])
            elif FILLED_BY == "files":
                memory.put_file(f"note{number}", b"x" * 20_000)
        except CapacityError:
            return number
    raise SystemExit("nothing was refused")


draw = np.random.default_rng(1)
warm = memory(BUDGET)
for number in range(4):
    append(warm, number, draw)
warm.close()
del warm
before = resident()
filled = memory(BUDGET)
blocks = fill(filled, draw)
grown = resident() - before
stats = filled.upkeep.stats()
assert len(filled.blocks.infos()) >= blocks  # what is there stays
print(grown, stats.host_bytes + stats.index_bytes, stats.catalog_bytes)
"""


@pytest.mark.parametrize("filled_by", ["ids", "words", "tags", "added tags", "tensors", "payload", "files"])
def test_a_memory_in_ram_grows_by_its_budget(filled_by: str) -> None:
    run = [sys.executable, "-c", SCRIPT, str(BUDGET), filled_by]
    told = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
    assert told.returncode == 0, told.stderr + told.stdout
    grown, held, catalog = (int(number) for number in told.stdout.split())
    assert 0.9 * BUDGET < held <= 1.1 * BUDGET  # the last block's index comes after it
    assert catalog > 0
    assert 0.8 * held < grown < 1.25 * BUDGET + (4 << 20)


def test_what_tensors_replace_makes_room_for_what_comes() -> None:
    """A budget for a few records takes any number of replacements, and what is dropped is given back."""
    text_alone = {"layers": 0, "kv_heads": 0, "head_dim": 0}
    made = _core.Manifest(weights="w", rope="r", tokenizer="t", page_tokens=64, codec="fp32", **text_alone)
    memory = _core.Memory.create(None, made, 4 << 20)
    ids = np.arange(8, dtype=np.int32)
    for begin in (0, 8):
        memory.blocks.append(
            stream=0, begin=begin, end=begin + 8, sink_tokens=0, source="", created_at=1.0, tags=[], token_ids=ids,
            payload=np.empty(0, np.uint8), tensors={"kept": np.arange(5, dtype=np.float32)},
        )  # fmt: skip
    before = memory.upkeep.stats().host_bytes
    for round_ in range(50):
        memory.blocks.put_tensors(1, {"large": np.full(1 << 18, round_, np.float32)})
        assert memory.upkeep.stats().host_bytes - before < 3 << 19
    assert (memory.blocks.tensor(1, "large") == 49).all()
    memory.blocks.drop_tensors(1, ["large"])
    assert memory.upkeep.stats().host_bytes - before < 1 << 16
    for block in (1, 2):
        assert (memory.blocks.tensor(block, "kept") == np.arange(5)).all()
    assert memory.upkeep.verify().damage == []
    memory.close()
