"""A memory against a plain dict: whatever is done to it, in whatever order, it holds what the dict holds."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import everlong
from everlong import errors
from support.examples import examples
from support.native import PAGE, Written, manifest

SOURCES = ("letters", "book", "")
TAGS = ("a", "b")


class Model:
    """What one memory should hold: blocks by id, in plain Python."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[Written, float, list[str]]] = {}
        self.ends: dict[int, int] = {}  # of what was ever appended
        self.given = 0  # the last id

    def copy(self) -> Model:
        other = Model()
        other.blocks, other.ends, other.given = dict(self.blocks), dict(self.ends), self.given
        return other


def expect_same(memory: everlong.Memory, model: Model) -> None:
    blocks = memory.blocks()
    assert [block.id for block in blocks] == sorted(model.blocks)
    for block in blocks:
        written, created, tags = model.blocks[block.id]
        assert block.span == (written.begin, written.end)
        assert (block.source, list(block.tags), block.created_at.timestamp()) == (written.source, tags, created)
        pages = [page for page in memory.core.blocks.pages() if page.block == block.id]
        out = np.zeros(sum(memory.core.page_bytes(page.end - page.begin) for page in pages), dtype=np.uint8)
        memory.core.blocks.read_pages(pages, out)
        np.testing.assert_array_equal(out, written.payload())
        np.testing.assert_array_equal(
            memory.core.blocks.token_ids(written.stream, written.begin, written.end), written.ids
        )
    frequency: dict[int, int] = {}
    pages = 0
    for written, _, _ in model.blocks.values():
        for first in range(0, len(written.ids), PAGE):
            pages += 1
            for token in set(written.ids[first : first + PAGE].tolist()):
                frequency[token] = frequency.get(token, 0) + 1
    ids = np.arange(50, dtype=np.int32)
    expected_idf = np.log1p(pages / np.maximum(1, [frequency.get(int(token), 0) for token in ids]))
    np.testing.assert_allclose(memory.core.search.idf(ids), expected_idf, rtol=1e-6)


class MemoryStates(RuleBasedStateMachine):
    """One memory that is worked on, and the branches that were taken of it on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="everlong-states-"))
        self.rng = np.random.default_rng(0)
        self.model = Model()
        self.branches: list[tuple[Path, Model]] = []
        self.made = 0

    def new_path(self) -> Path:
        self.made += 1
        return self.root / f"m{self.made}"

    @initialize(in_folder=st.booleans(), host_bytes=st.sampled_from([0, 3_000, 10**8]))
    def create(self, in_folder: bool, host_bytes: int) -> None:
        self.host_bytes = host_bytes if in_folder else 10**8
        self.path = self.new_path() if in_folder else None
        self.memory = everlong.Memory.open(self.path, create=manifest(), host_bytes=self.host_bytes)

    @rule(
        stream=st.integers(0, 2),
        tokens=st.integers(1, 13),
        source=st.sampled_from(SOURCES),
        tags=st.lists(st.sampled_from(TAGS), max_size=2),
        created=st.integers(0, 9),
    )
    def append(self, stream: int, tokens: int, source: str, tags: list[str], created: int) -> None:
        begin = self.model.ends.get(stream, 0)
        block = Written(self.rng, stream, begin, tokens, source)
        block_id = block.append_to(self.memory.core, tags=tags, created_at=float(created))
        assert block_id == self.model.given + 1
        self.model.given = block_id
        self.model.ends[stream] = begin + tokens
        self.model.blocks[block_id] = (block, float(created), tags)

    def forgotten(self, ids: list[int]) -> None:
        for block_id in ids:
            del self.model.blocks[block_id]

    @precondition(lambda self: self.model.blocks)
    @rule(data=st.data())
    def forget_ids(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.model.blocks)), min_size=1, max_size=3, unique=True))
        assert self.memory.forget(ids) == len(ids)
        self.forgotten(ids)

    @rule(source=st.sampled_from(SOURCES), before=st.one_of(st.none(), st.integers(0, 9)))
    def forget_by_filter(self, source: str, before: int | None) -> None:
        ids = [
            block_id
            for block_id, (block, created, _) in self.model.blocks.items()
            if block.source == source and (before is None or created < before)
        ]
        assert self.memory.forget(source=source, before=before) == len(ids)
        self.forgotten(ids)

    @rule(unknown=st.integers(1, 30))
    def forget_unknown(self, unknown: int) -> None:
        ids = [*self.model.blocks, self.model.given + unknown]
        with pytest.raises(errors.MemoryNotFoundError):
            self.memory.forget(ids)

    @rule()
    def flush(self) -> None:
        self.memory.flush()

    @rule()
    def compact(self) -> None:
        self.memory.compact()
        assert self.memory.stats().dead_bytes <= 8192  # what the file system itself keeps of a file with holes

    @precondition(lambda self: self.path is not None)
    @rule(fill_from_disk=st.booleans())
    def reopen(self, fill_from_disk: bool) -> None:
        self.memory.close()
        self.memory = everlong.Memory.open(self.path, host_bytes=self.host_bytes if fill_from_disk else 0)

    @precondition(lambda self: len(self.branches) < 3)
    @rule(go_on_in_branch=st.booleans())
    def fork(self, go_on_in_branch: bool) -> None:
        path = self.new_path()
        with self.memory.fork(path) as branch:
            expect_same(branch, self.model)
        if go_on_in_branch:
            self.memory.close()
            if self.path is not None:
                self.branches.append((self.path, self.model.copy()))
            self.path = path
            self.memory = everlong.Memory.open(path, host_bytes=self.host_bytes)
        else:
            self.branches.append((path, self.model.copy()))

    @rule()
    def export_and_import(self) -> None:
        file = self.root / "export"
        self.memory.export(file)
        with everlong.Memory.import_file(file, None) as imported:
            expect_same(imported, self.model)
        file.unlink()

    @precondition(lambda self: self.path is not None)
    @rule()
    def read_beside(self) -> None:
        self.memory.flush()
        with everlong.Memory.open(self.path, read_only=True) as reader:
            expect_same(reader, self.model)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if hasattr(self, "memory"):
            expect_same(self.memory, self.model)

    def teardown(self) -> None:
        try:
            if hasattr(self, "memory"):
                report = self.memory.verify()
                assert report.damage == ()
                assert report.blocks == len(self.model.blocks)
                self.memory.close()
            for path, model in self.branches:
                with everlong.Memory.open(path) as branch:
                    expect_same(branch, model)
                    assert branch.verify().damage == ()
        finally:
            shutil.rmtree(self.root)


TestMemoryStates = MemoryStates.TestCase
TestMemoryStates.settings = examples(10, stateful_step_count=20, suppress_health_check=[HealthCheck.too_slow])
