"""One object of every class of the core that has state."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import everlong._core as _core
from support.native import DIM, HEADS, Written, manifest

CLASSES = {name: found for name, found in vars(_core).items() if inspect.isclass(found)}
UNITS = 3
OS = {"frame_tokens": 200, "sink_tokens": 4, "recalled_tokens": 40, "rolling_tokens": 48, "evict_tokens": 16}
ZONES = {"anchor_tokens": 3, "anchors": 4, "tombstones": 3, "kept_tokens": 18, "kept_share": 4, "kept_rungs": 3}
Vectors = np.ndarray[Any, np.dtype[np.float32]]


class Objects:
    """The objects, of one memory where they are a memory's. `seen` has the classes that `look` came by."""

    def __init__(self, folder: Path) -> None:
        self.seen: set[type] = set()
        self.folder = folder
        self.manifest = manifest()
        self.memory = _core.Memory.create(str(folder / "memory"), self.manifest, 1 << 20)
        self.memory.index.set_retrieval_heads(HEADS)
        self.memory.index.set_page_vectors("e", DIM, "dnii")
        self.memory.graph.grow(radius=0.5)
        self.flat = _core.VectorIndex.flat(DIM, "cosine", "fp32")
        self.graph = _core.VectorIndex.hnsw(DIM, "cosine", 4, 16, 16, 8)
        self.lists = _core.NeuralInvertedIndex(DIM, "cosine", 8, 4, 16, 8)
        self.gardener = _core.Gardener(DIM, levels=2, radius=0.5)
        self.tree = _core.TagTree()
        self.engine = _core.TransferEngine(None, 1 << 20)
        self.buffer = self.engine.acquire(64)
        self.config = _core.MemoryOsConfig(**OS, **ZONES, block_tokens=24, least_tokens=8, topic_threshold=0.75)
        self.os = _core.MemoryOs(self.config)
        rng = np.random.default_rng(9)
        inner = rng.standard_normal((UNITS, len(_core.WALK_FEATURES))).astype(np.float32)
        self.policy = _core.WalkerPolicy(inner, np.zeros(UNITS, np.float32), np.ones(UNITS, np.float32), 0.5)
        self.walk = _core.Walk(self.policy, keep_all=True)
        self.words = _core.WordTable([str(token).encode() for token in range(64)], [False] * 64, [True] * 64)
        self.narrow = _core.Narrow([(0.0, 1e10)], ["x"])
        Written(rng, 0, 0, 10, "first").append_to(self.memory)
        self.memory.upkeep.flush()
        (self.page, *_) = self.pages = self.memory.blocks.pages()
        self.read = np.empty(sum(self.memory.page_bytes(page.end - page.begin) for page in self.pages), np.uint8)
        self.reads = self.memory.blocks.start_read_pages(self.pages, 0, 2, self.read)
        while not self.os.evicted:
            actions = self.os.observe(min(8, self.os.room()), "read", [(4, "sentence")])
            self.look(actions)
            if any(isinstance(action, _core.Trim) for action in actions):
                self.os.choose([])
        kinds = (_core.codecs(), _core.index_kinds())
        for value in (damaged(folder), *kinds, self.os.begin_prompt(), *vars(self).values()):
            self.look(value)

    def look(self, value: object) -> None:
        """Read all that a value of the core's says, and what that says."""
        if isinstance(value, Mapping):
            value = list(value.values())
        if isinstance(value, list | tuple):
            for one in value[:3]:
                self.look(one)
        elif type(value) in CLASSES.values():
            self.seen.add(type(value))
            for name, member in inspect.getmembers(type(value)):
                if isinstance(member, property):
                    self.look(getattr(value, name))

    def check(self, calls: int) -> None:
        """Assert what is there after so many of each call."""
        for index in (self.flat, self.graph, self.lists):
            assert index.size == calls
        members = [centre.members for centre in self.gardener.centres() if centre.level == 0]
        assert sum(map(len, members)) == calls
        assert self.memory.upkeep.verify().damage == []
        for block in self.memory.blocks.infos()[:20]:
            ids = self.memory.blocks.token_ids(block.stream, block.begin, block.end)
            found = self.memory.search.find(token_ids=ids, kinds=["lexical"], sources=[block.source], max_groups=1)
            assert found.groups[0].source == block.source


def vectors(rng: np.random.Generator, count: int) -> Vectors:
    return rng.standard_normal((count, DIM)).astype(np.float32)


def damaged(folder: Path) -> object:
    """Return what a check finds in a memory with a damaged byte."""
    memory = _core.Memory.create(str(folder / "damaged"), manifest(), 0)
    Written(np.random.default_rng(1), 0, 0, 10, "").append_to(memory)
    memory.close()
    segment = folder / "damaged" / "segments" / "000001.kvseg"
    data = bytearray(segment.read_bytes())
    data[4096 + 4096 + 20] ^= 1
    segment.write_bytes(data)
    memory = _core.Memory.open(str(folder / "damaged"), True, 0)
    report = memory.upkeep.verify()
    memory.close()
    assert report.damage
    return report
