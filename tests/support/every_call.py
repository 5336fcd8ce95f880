"""Calls of every object of the core that any thread may make at any time, by the class that they call.

Each takes the objects, and a thread's generator and number. What may fail because of other threads is named.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import everlong._core as _core
from everlong.errors import CapacityError, MemoryExistsError, MemoryNotFoundError
from support.every_object import Objects, vectors
from support.native import DIM, HEADS, Written


@contextlib.contextmanager
def may_fail(errors: type[Exception] | tuple[type[Exception], ...], match: str) -> Iterator[None]:
    """Pass over an error of these types whose message matches."""
    try:
        yield
    except errors as error:
        if not re.search(match, str(error)):
            raise


# --- values, whose calls keep the GIL


def manifest(of: Objects, rng: np.random.Generator, thread: int) -> object:
    of.manifest.attributes = {f"key {i}": "value" * 100 for i in range(int(rng.integers(1, 50)))}
    _core.check_fingerprint(of.manifest, weights="w", rope="r", tokenizer="t")
    return of.manifest.attributes


def page_ref(of: Objects, rng: np.random.Generator, thread: int) -> object:
    of.page.end = int(rng.integers(0, 1 << 30))
    of.page.end = 4
    return repr(of.page), of.page == of.pages[1]


def memory_os_config(of: Objects, rng: np.random.Generator, thread: int) -> object:
    of.config.stream = thread
    return _core.MemoryOs(of.config).stream


def tag_tree(of: Objects, rng: np.random.Generator, thread: int) -> object:
    with may_fail(ValueError, "expected above"):  # another thread was there before
        of.tree.add(len(of.tree) + int(rng.integers(1, 1000)), rng.random() * 1e9, thread, ["a", f"b{thread}"])
    block = of.tree.blocks_with("a")
    return of.tree.narrow([(0.0, 5e8)], ["a"]), of.tree.buckets(), block, of.tree.nbytes, 7 in of.tree


def walker_policy(of: Objects, rng: np.random.Generator, thread: int) -> object:
    return of.policy.logits(rng.random((4, len(_core.WALK_FEATURES)), np.float32))


def memory_os(of: Objects, rng: np.random.Generator, thread: int) -> object:
    decided: list[object] = []
    # Another thread's Trim is open, or its tokens took the room.
    with may_fail((ValueError, CapacityError), "choose\\(\\) first|room|offset"):
        ends = [(3, "sentence"), (5, "turn")]
        decided += of.os.observe(min(5, of.os.room()), ["read", "prompt", "generated"][thread % 3], ends)
        decided += of.os.begin_prompt() if thread % 3 == 1 else of.os.raise_signal("retrieve")
        decided += of.os.recall([_core.Offer(_core.PageRef(9, 0, 5, 0, 4))])
        branch = of.os.branch()
        branch.observe(1, "prompt")
        of.os.take_trace(branch)
    with may_fail(ValueError, "no Trim"):
        of.os.choose([])
    return (
        decided,
        _core.Offer(of.page),
        of.os.trace()[-1:],
        of.os.anchor_zone,
        of.os.kept,
        of.os.recall_counts,
        of.os.rolling,
    )


# --- a memory's


def memory(of: Objects, rng: np.random.Generator, thread: int) -> object:
    of.memory.put_file(f"note{thread}", rng.bytes(100))
    of.memory.set_attribute(f"thread {thread}", str(rng.integers(100)))
    made = _core.Memory.create(None, of.manifest, 1 << 20)
    made.close()
    return (
        of.memory.manifest(),
        of.memory.file(f"note{thread}"),
        of.memory.read_only,
        of.memory.page_bytes(4),
    )


def blocks(of: Objects, rng: np.random.Generator, thread: int) -> object:
    blocks, stream = of.memory.blocks, thread + 1
    end = blocks.stream_end(stream)
    block = Written(rng, stream, end, 10, f"source {thread}").append_to(of.memory)
    pages = blocks.pages_of(stream, end, end + 10)
    out = np.empty(sum(of.memory.page_bytes(page.end - page.begin) for page in pages), np.uint8)
    blocks.start_read_pages(pages, 0, 2, out).wait()
    again = np.empty_like(out)
    blocks.read_pages(pages, again)
    assert (out == again).all()
    blocks.put_tensors(block, {"a": rng.random(4)})
    blocks.add_tags(block, [f"tag {thread}"])
    with may_fail(ValueError, "page"):  # another thread writes to the page
        blocks.read_keys(of.page, 1)
    told = blocks.info(block), blocks.tensors(block), blocks.tensor_shapes(block), blocks.infos(tag="x")[:2]
    if rng.random() < 0.3:
        blocks.forget([block])
    return told, blocks.token_ids(0, 0, 10)


def searcher(of: Objects, rng: np.random.Generator, thread: int) -> object:
    asked: dict[str, Any] = {
        "token_ids": rng.integers(0, 50, 3).astype(np.int32),
        "head_queries": rng.random((3, len(HEADS), DIM), np.float32),
        "page_query": rng.random(DIM, np.float32),
        "kinds": ["heads", "lexical", "embedding"],
    }
    search = of.memory.search
    found = search.find(**asked, walk=of.walk, narrow=of.narrow, added=[(of.pages[1], 1.0)])
    pages = search.recent_pages(1, 100, 2), search.random_pages(1, 100, 2, 5)
    return found, search.rankings(3, **asked), pages, search.idf(asked["token_ids"])


def indexes(of: Objects, rng: np.random.Generator, thread: int) -> object:
    index = of.memory.index
    for page in index.pages_without_vectors()[:2]:
        with may_fail((MemoryNotFoundError, MemoryExistsError), "block"):  # another thread added them, or forgot it
            index.add_page_vectors(page.block, np.array([page.page], np.int32), vectors(rng, 1), [[1, 2]])
    if rng.random() < 0.2:
        index.set_retrieval_heads(HEADS[: int(rng.integers(len(HEADS), len(HEADS) + 1))], coarse_from=8)
        index.save()
    if rng.random() < 0.2:
        index.set_words(of.words if rng.random() < 0.7 else None)
    of.look(index.words())
    of.words.words(np.array([1, 2, 1], np.int32))
    lists = index.page_lists()
    assert lists is not None
    return lists.lists(), index.retrieval_heads(), index.device_use("heads"), index.take_messages()


def block_graph(of: Objects, rng: np.random.Generator, thread: int) -> object:
    graph = of.memory.graph
    graph.tend(2)
    nodes, edges = graph.read()
    for node in nodes[:2]:
        with may_fail(MemoryNotFoundError, "node"):  # another thread forgot it
            of.look([graph.node(node.id), graph.path(node.id, nodes[-1].id)])
    return nodes, edges, graph.nodes("block"), graph.edges(1), graph.tag_buckets()


def upkeep(of: Objects, rng: np.random.Generator, thread: int) -> object:
    upkeep = of.memory.upkeep
    upkeep.flush()
    if rng.random() < 0.1:
        upkeep.compact()
    report = upkeep.verify()
    assert report.damage == []
    return upkeep.stats(), report


def pending_reads(of: Objects, rng: np.random.Generator, thread: int) -> object:
    of.reads.wait()
    return of.reads


# --- the rest


def vector_index(of: Objects, rng: np.random.Generator, thread: int) -> object:
    return [add_and_search(of, index, rng, thread) for index in (of.flat, of.graph)]


def neural_inverted_index(of: Objects, rng: np.random.Generator, thread: int) -> object:
    found = add_and_search(of, of.lists, rng, thread)
    terms = of.lists.probe(vectors(rng, 2), 3, None, 2, [[1], [2]])
    return found, terms, of.lists.lists(), of.lists.router(), of.lists.lists_of(np.arange(9))


def add_and_search(of: Objects, index: _core.VectorIndex, rng: np.random.Generator, thread: int) -> object:
    """Leave one of three vectors there."""
    ids = (thread << 40) + rng.integers(0, 1 << 40, 3)
    index.add(ids, vectors(rng, 3))
    assert index.remove(ids[:2]) == 2
    found, _ = index.search(vectors(rng, 2), 3, None if thread % 2 else np.ones(1 << 10, np.uint8))
    if rng.random() < 0.1:
        index.save(str(of.folder / f"index {thread}"))
    return found, index.size, index.nbytes, index.dimension


def gardener(of: Objects, rng: np.random.Generator, thread: int) -> object:
    """Leave one of three blocks there."""
    ids = (thread << 30) + rng.integers(0, 1 << 30, 3)
    of.gardener.add(ids, vectors(rng, 3))
    for block in ids[:2]:
        of.gardener.forget(int(block))
    said = of.gardener.size(), of.gardener.radius(1), of.gardener.nbytes, of.gardener.centre_of(int(ids[2]))
    return said, of.gardener.centres()


def transfer_engine(of: Objects, rng: np.random.Generator, thread: int) -> object:
    buffer = of.engine.try_acquire(1 << 10, 1 << 15) or of.engine.acquire(1 << 10)
    buffer.array[:] = thread
    out = np.zeros(1 << 10, np.uint8)
    moved = of.engine.to_device(buffer, out.ctypes.data)
    point = of.engine.point_of(0)
    of.engine.wait(moved)
    assert (out == thread).all()
    back = of.engine.to_host(buffer, out.ctypes.data, point)
    of.engine.order_after(back, 0)
    return buffer, moved, point


def staging_buffer(of: Objects, rng: np.random.Generator, thread: int) -> object:
    return of.buffer.array.copy()


CALLS: dict[str, Callable[[Objects, np.random.Generator, int], object]] = {
    "Manifest": manifest,
    "PageRef": page_ref,
    "MemoryOsConfig": memory_os_config,
    "TagTree": tag_tree,
    "WalkerPolicy": walker_policy,
    "MemoryOs": memory_os,
    "Memory": memory,
    "Blocks": blocks,
    "Searcher": searcher,
    "Indexes": indexes,
    "BlockGraph": block_graph,
    "Upkeep": upkeep,
    "PendingReads": pending_reads,
    "VectorIndex": vector_index,
    "NeuralInvertedIndex": neural_inverted_index,
    "Gardener": gardener,
    "TransferEngine": transfer_engine,
    "StagingBuffer": staging_buffer,
}
# They belong to the process that made them.
OF_A_PROCESS = {
    *("Memory", "Blocks", "Searcher", "Indexes", "BlockGraph", "Upkeep", "PendingReads", "VectorIndex"),
    *("NeuralInvertedIndex", "Gardener", "TransferEngine", "StagingBuffer"),
}
