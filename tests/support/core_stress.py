"""The native core, driven by several threads at once: all that happens to a folder, and every call of every object.

`python -m support.core_stress` runs all of it, without torch: `.ci/tsan_python.sh` does so under ThreadSanitizer.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import everlong._core as _core
from everlong.errors import ClosedError, MemoryBusyError, MemoryExistsError, MemoryNotFoundError
from support.every_call import CALLS
from support.every_object import Objects
from support.native import DIM, HEADS, Written, manifest

Call = Callable[[np.random.Generator, int], object]

# What other threads may have done meanwhile: forgot a block, or have the folder.
_MEANWHILE = (MemoryNotFoundError, MemoryBusyError, MemoryExistsError)


def at_once(calls: Sequence[Call], threads: int, rounds: int, *, until_closed: bool = False) -> None:
    """Let so many threads make every call so many times, each in an order of its own.

    Raise the first error that is not other threads' doing. `until_closed`: ClosedError ends a thread.
    """
    errors: list[BaseException] = []
    start = threading.Barrier(threads)

    def work(thread: int) -> None:
        rng = np.random.default_rng(thread)
        own = list(calls)
        try:
            start.wait()
            for _ in range(rounds):
                rng.shuffle(own)
                for call in own:
                    with contextlib.suppress(*_MEANWHILE):
                        call(rng, thread)
        except ClosedError as error:
            if not until_closed:
                errors.append(error)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]


class Folder:
    """A memory in a folder, and all that threads do to it."""

    def __init__(self, parent: Path) -> None:
        self.parent, self.folder = parent, parent / "shared"
        self.memory = _core.Memory.create(str(self.folder), manifest(), 1 << 16)  # its cache is too small for all
        self.memory.index.set_retrieval_heads(HEADS, coarse_from=8)
        self.memory.index.set_page_vectors("e", DIM, "dnii")
        self.memory.graph.grow(radius=0.5)
        policy = _core.WalkerPolicy(
            np.ones((2, len(_core.WALK_FEATURES)), np.float32), np.zeros(2, np.float32), np.ones(2, np.float32), 0.0
        )
        self.walk = _core.Walk(policy)
        self.calls: list[Call] = [
            self.write,
            self.read,
            self.search,
            self.give_vectors,
            self.tag,
            self.forget,
            self.recode,
            self.compact,
            self.export,
            self.fork,
            self.open_beside,
            self.look,
        ]
        for thread in range(4):
            self.write(np.random.default_rng(thread), thread)

    def write(self, rng: np.random.Generator, thread: int) -> None:
        blocks = self.memory.blocks
        Written(rng, thread, blocks.stream_end(thread), 12, f"source {thread}").append_to(self.memory)
        if rng.random() < 0.5:
            self.memory.upkeep.flush()

    def _any_block(self, rng: np.random.Generator) -> int:
        found = self.memory.blocks.infos()
        return int(rng.choice([block.id for block in found])) if found else 1

    def read(self, rng: np.random.Generator, thread: int) -> None:
        """Two threads read the same pages; what is recoded meanwhile has another size."""
        blocks = self.memory.blocks
        block = blocks.info(self._any_block(rng))
        pages = blocks.pages_of(block.stream, block.begin, block.end)
        codec = blocks.read_codec(block.id)
        out = np.empty(sum(self.memory.page_bytes(page.end - page.begin, codec) for page in pages), np.uint8)
        pending = blocks.start_read_pages(pages, 0, 2, out, codec)
        blocks.read_keys(pages[0], 1)
        pending.wait()
        again = np.empty_like(out)
        blocks.read_pages(pages, again, codec)
        blocks.token_ids(block.stream, block.begin, block.end)

    def search(self, rng: np.random.Generator, thread: int) -> None:
        found = self.memory.search.find(
            token_ids=rng.integers(0, 50, 3).astype(np.int32),
            head_queries=rng.random((3, len(HEADS), DIM), np.float32),
            page_query=rng.random(DIM, np.float32),
            kinds=["heads", "lexical", "embedding"],
            walk=self.walk if rng.random() < 0.5 else None,
            narrow=_core.Narrow([(0.0, 1e10)], ["x"]),
        )
        assert all(group.pages for group in found.groups)

    def give_vectors(self, rng: np.random.Generator, thread: int) -> None:
        index = self.memory.index
        for page in index.pages_without_vectors()[:3]:
            vectors = rng.standard_normal((1, DIM)).astype(np.float32)
            index.add_page_vectors(page.block, np.array([page.page], np.int32), vectors, [[1, 2]])
        self.memory.graph.tend(3)
        if rng.random() < 0.2:
            index.save()

    def tag(self, rng: np.random.Generator, thread: int) -> None:
        block = self._any_block(rng)
        self.memory.blocks.put_tensors(block, {f"tensor {thread}": rng.random(5)})
        self.memory.blocks.add_tags(block, [f"tag {thread}"])

    def forget(self, rng: np.random.Generator, thread: int) -> None:
        if len(self.memory.blocks.infos()) > 8:
            self.memory.blocks.forget([self._any_block(rng)])

    def recode(self, rng: np.random.Generator, thread: int) -> None:
        self.memory.upkeep.recode(self._any_block(rng), str(rng.choice(["bf16", "int8", "fp32"])))

    def compact(self, rng: np.random.Generator, thread: int) -> None:
        self.memory.upkeep.compact()

    def export(self, rng: np.random.Generator, thread: int) -> None:
        file = self.parent / f"exported {thread}"
        file.unlink(missing_ok=True)
        self.memory.upkeep.export_file(str(file))
        copy = _core.Memory.import_file(str(file), None, 1 << 20)
        assert copy.upkeep.verify().damage == []
        copy.close()

    def fork(self, rng: np.random.Generator, thread: int) -> None:
        folder = self.parent / f"fork {thread} {rng.integers(1 << 40)}"
        self.memory.upkeep.fork(str(folder))
        fork = _core.Memory.open(str(folder), False, 1 << 20)
        Written(rng, 9, fork.blocks.stream_end(9), 12, "fork").append_to(fork)
        fork.close()

    def open_beside(self, rng: np.random.Generator, thread: int) -> None:
        """Have another handle of the folder, which reads while the first one writes; no second one may write."""
        with contextlib.suppress(MemoryBusyError):
            _core.Memory.open(str(self.folder), False, 1 << 20).close()
            raise AssertionError("two handles may write")
        beside = _core.Memory.open(str(self.folder), True, 1 << 20)
        try:
            for block in beside.blocks.infos()[:3]:
                beside.blocks.token_ids(block.stream, block.begin, block.end)
            beside.search.find(token_ids=rng.integers(0, 50, 4).astype(np.int32), kinds=["lexical"])
        finally:
            beside.close()

    def look(self, rng: np.random.Generator, thread: int) -> None:
        self.memory.upkeep.stats()
        self.memory.graph.read()
        self.memory.blocks.infos(tag=f"tag {thread}")
        self.memory.put_file(f"note{thread}", rng.bytes(64))
        self.memory.set_attribute(f"thread {thread}", str(rng.integers(9)))
        assert self.memory.manifest().layers == 2

    def check(self) -> None:
        """Assert that all is readable."""
        assert self.memory.upkeep.verify().damage == []
        for block in self.memory.blocks.infos():
            assert len(self.memory.blocks.token_ids(block.stream, block.begin, block.end)) == 12

    def close_while_used(self, threads: int) -> None:
        """Close it while other threads do all of it."""
        begun = threading.Event()

        def begin(rng: np.random.Generator, thread: int) -> None:
            begun.set()

        def close() -> None:
            begun.wait()
            self.memory.close()

        closing = threading.Thread(target=close)
        closing.start()
        at_once([*self.calls, begin], threads, 1000, until_closed=True)
        closing.join()


def stressed(parent: Path, threads: int, rounds: int) -> None:
    """Do all that happens to a folder, by so many threads, so many times each; then open it again."""
    folder = Folder(parent)
    at_once(folder.calls, threads, rounds)
    folder.check()
    folder.close_while_used(threads)
    again = _core.Memory.open(str(folder.folder), False, 1 << 20)
    assert again.upkeep.verify().damage == []
    again.close()


def main(threads: int, rounds: int) -> None:
    """Run everything, in folders that are removed."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        stressed(Path(one), threads, rounds)
        objects = Objects(Path(other))
        at_once([functools.partial(call, objects) for call in CALLS.values()], threads, rounds)
        objects.check(threads * rounds)
        objects.memory.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
