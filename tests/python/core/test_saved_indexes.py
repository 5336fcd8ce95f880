"""Indexes kept in a memory's folder: taken up where they fit the catalog, made anew where not, the same hits always."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import everlong
import everlong._core as _core

KV_HEADS, DIM, PAGE, BLOCK, LAYERS = 2, 8, 64, 160, 2
HEADS = [(0, 0, 0), (1, 3, 1), (0, 1, 0)]
VECTOR = 12
KINDS = ("heads", "lexical", "mean_pool", "hnsw", "embedding")
MAPPED = ("heads", "lexical")  # keys and postings are checked by `verify`, and before they are written again


def new_memory(folder: Path) -> everlong.Memory:
    shape = {"layers": LAYERS, "kv_heads": KV_HEADS, "head_dim": DIM, "page_tokens": PAGE}
    manifest = _core.Manifest(weights="", rope="", tokenizer="", codec="bf16", **shape)
    return everlong.Memory.open(folder, create=manifest)


def append(memory: everlong.Memory, blocks: int, seed: int = 0) -> list[int]:
    """Blocks of random keys, the first of a memory with sinks."""
    rng = np.random.default_rng([seed, memory.stats().blocks])
    ids = []
    for _ in range(blocks):
        begin = memory.core.blocks.stream_end(0)
        pages = []
        for first in range(0, BLOCK, PAGE):
            shape = (LAYERS, 2, KV_HEADS, min(PAGE, BLOCK - first), DIM)  # K and V of every layer
            pages.append(torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).bfloat16().view(torch.uint8))
        ids.append(
            memory.core.blocks.append(
                stream=0,
                begin=begin,
                end=begin + BLOCK,
                sink_tokens=5 if begin == 0 else 0,
                source="",
                created_at=float(begin) + seed,
                tags=[],
                token_ids=rng.integers(0, 100, BLOCK).astype(np.int32),
                payload=torch.cat([page.reshape(-1) for page in pages]).numpy(),
            )
        )
    memory.flush()
    return ids


def index(memory: everlong.Memory, *, vectors: bool = True) -> int:
    """Turn on every index; give the blocks without vectors theirs, and return how many those were."""
    core = memory.core
    core.index.set_retrieval_heads(HEADS)
    core.index.set_page_vectors("random", VECTOR)
    search(memory, "mean_pool")
    search(memory, "hnsw")
    missing = sorted({page.block for page in core.index.pages_without_vectors()})
    for block in missing if vectors else ():
        rng = np.random.default_rng(block)
        pages = np.repeat(np.arange((BLOCK + PAGE - 1) // PAGE, dtype=np.int32), 2)
        core.index.add_page_vectors(block, pages, rng.standard_normal((len(pages), VECTOR)).astype(np.float32))
    return len(missing)


def search(memory: everlong.Memory, kind: str) -> list[tuple[int, int, float]]:
    rng = np.random.default_rng(7)
    queries = {
        "head_queries": rng.standard_normal((4, len(HEADS), DIM)).astype(np.float32),
        "mean_query": rng.standard_normal(KV_HEADS * DIM).astype(np.float32),
        "page_query": rng.standard_normal(VECTOR).astype(np.float32),
    }
    name = {"heads": "head_queries", "embedding": "page_query"}.get(kind, "mean_query")
    found = memory.core.search.find(
        token_ids=np.arange(4, dtype=np.int32),
        kinds=[kind],
        max_groups=50,
        neighbours=0,
        token_budget=1 << 30,
        **{name: queries[name]},
    )
    return [(group.begin, group.end, group.score) for group in found.groups]


def all_hits(memory: everlong.Memory) -> dict[str, list[tuple[int, int, float]]]:
    return {kind: search(memory, kind) for kind in KINDS}


def rebuilt(folder: Path, tmp_path: Path) -> dict[str, list[tuple[int, int, float]]]:
    """The hits of the same memory without anything saved."""
    copy = tmp_path / "rebuilt"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "index", ignore_errors=True)
    with everlong.Memory.open(copy) as memory:
        index(memory)
        return all_hits(memory)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A memory of 12 blocks whose indexes were saved when it was closed."""
    with new_memory(tmp_path / "m") as memory:
        append(memory, 12)
        index(memory)
    return tmp_path / "m"


def test_every_index_is_saved_and_taken_up(folder: Path, tmp_path: Path) -> None:
    names = {file.name for file in (folder / "index").iterdir()}
    assert names == set(KINDS)
    stood = {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in (folder / "index").iterdir()}
    with everlong.Memory.open(folder) as memory:
        assert index(memory) == 0
        assert memory.core.index.take_messages() == []
        hits = all_hits(memory)
        assert all(hits.values())
    assert hits == rebuilt(folder, tmp_path)
    assert {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in (folder / "index").iterdir()} == stood


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["index", "list"])
@pytest.mark.parametrize("damage", ["deleted", "flipped", "cut", "empty"])
def test_what_is_damaged_is_made_anew_with_a_message(
    folder: Path, tmp_path: Path, caplog, kind: str, part: str, damage: str
) -> None:
    expected = rebuilt(folder, tmp_path)
    file = folder / "index" / kind
    data = file.read_bytes()
    begin = int.from_bytes(data[-32:-24], "little")  # of the list
    if damage == "deleted":
        file.write_bytes(data[begin:] if part == "index" else data[:begin])
    elif damage == "flipped":
        # Of what is mapped, the line that names the kind: an open reads no keys, postings and vectors.
        of_index = 9 if kind in MAPPED else begin // 2
        at = of_index if part == "index" else (begin + len(data)) // 2
        file.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
    else:
        left = begin * 2 // 3 if part == "index" else (begin + len(data)) // 2
        file.write_bytes(data[:left] if damage == "cut" else b"")
    with caplog.at_level(logging.WARNING, logger="everlong"), everlong.Memory.open(folder) as memory:
        index(memory)
        assert all_hits(memory) == expected
    assert len(caplog.messages) == 1
    assert f'"{kind}"' in caplog.messages[0]
    caplog.clear()
    with everlong.Memory.open(folder) as memory:
        assert index(memory) == 0
        assert all_hits(memory) == expected
    assert caplog.messages == []


def test_every_flipped_byte_is_seen_or_harmless(folder: Path, tmp_path: Path) -> None:
    expected = rebuilt(folder, tmp_path)
    rng = np.random.default_rng(3)
    for file in sorted((folder / "index").iterdir()):
        data = file.read_bytes()
        for at in rng.integers(0, len(data), 6):
            file.write_bytes(data[:at] + bytes([data[at] ^ (1 << rng.integers(8))]) + data[at + 1 :])
            with everlong.Memory.open(folder, read_only=True) as memory:
                index(memory)  # what is not mapped is checked now
                assert file.name in MAPPED or all_hits(memory) == expected, (file.name, at)
                (damage,) = memory.verify().damage
                assert f"saved index {file.name}:" in damage.what
                assert file.name in MAPPED or len(memory.core.index.take_messages()) == 1
        file.write_bytes(data)


def test_nothing_saved_is_no_reason_for_a_message(folder: Path, tmp_path: Path) -> None:
    expected = rebuilt(folder, tmp_path)
    shutil.rmtree(folder / "index")
    with everlong.Memory.open(folder) as memory:
        assert index(memory) == 12
        assert memory.core.index.take_messages() == []
        assert all_hits(memory) == expected


def test_blocks_that_came_later_are_added(folder: Path, tmp_path: Path) -> None:
    """As after a crash: the index is older than the catalog."""
    shutil.copytree(folder / "index", tmp_path / "old")
    with everlong.Memory.open(folder) as memory:
        append(memory, 3)
        index(memory)
    shutil.rmtree(folder / "index")
    shutil.copytree(tmp_path / "old", folder / "index")
    with everlong.Memory.open(folder) as memory:
        assert index(memory) == 3
        assert memory.core.index.take_messages() == []
        hits = all_hits(memory)
    assert hits == rebuilt(folder, tmp_path)


def test_blocks_that_were_forgotten_later_are_dropped(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "index", tmp_path / "old")
    with everlong.Memory.open(folder) as memory:
        index(memory)
        memory.forget([2, 3, 9])
        before = all_hits(memory)
        append(memory, 1)
    for saved in (None, tmp_path / "old"):
        if saved is not None:
            shutil.rmtree(folder / "index")
            shutil.copytree(saved, folder / "index")
        with everlong.Memory.open(folder) as memory:
            index(memory)
            assert memory.core.index.take_messages() == []
            hits = all_hits(memory)
        assert hits == rebuilt(folder, tmp_path)
        assert hits != before


def test_forgotten_keys_go_with_compact(folder: Path) -> None:
    with everlong.Memory.open(folder) as memory:
        index(memory)
        memory.forget([1])
        before = {file.name: file.stat().st_size for file in (folder / "index").iterdir()}
        memory.compact()
        # What the caller gave is written anew without it, and so are keys and words, which would be read again.
        after = {file.name: file.stat().st_size for file in (folder / "index").iterdir()}
        assert set(after) == {"embedding", "heads", "lexical"}
        assert all(size < before[name] for name, size in after.items())
        kept = all_hits(memory)
    with everlong.Memory.open(folder) as memory:
        assert index(memory) == 0
        assert {kind: [hit[:2] for hit in hits] for kind, hits in all_hits(memory).items()} == {
            kind: [hit[:2] for hit in hits] for kind, hits in kept.items()
        }


def test_compact_leaves_what_is_of_no_forgotten_block(folder: Path) -> None:
    with everlong.Memory.open(folder) as memory:
        index(memory)
    stood = {file.name: file.read_bytes() for file in (folder / "index").iterdir()}
    assert len(stood) == len(KINDS)
    with everlong.Memory.open(folder) as memory:  # and loads none of them
        memory.compact()
    assert {file.name: file.read_bytes() for file in (folder / "index").iterdir()} == stood
    with everlong.Memory.open(folder) as memory:
        assert index(memory) == 0
        memory.forget([2])
        memory.compact()
        assert {file.name for file in (folder / "index").iterdir()} == {"embedding", "heads", "lexical"}


def test_files_of_another_memory_are_not_taken(folder: Path, tmp_path: Path) -> None:
    with new_memory(tmp_path / "other") as other:
        append(other, 12, seed=1)
        index(other)
    shutil.rmtree(folder / "index")
    shutil.copytree(tmp_path / "other" / "index", folder / "index")
    with everlong.Memory.open(folder) as memory:
        index(memory)
        assert len(memory.core.index.take_messages()) == len(KINDS)
        hits = all_hits(memory)
    assert hits == rebuilt(folder, tmp_path)


@pytest.mark.parametrize("keys", ["int8", "e4m3"])
def test_keys_kept_otherwise_make_their_own(folder: Path, tmp_path: Path, keys: str) -> None:
    def heads(kind: str) -> list[tuple[int, int, float]]:
        with everlong.Memory.open(folder) as memory:
            memory.core.index.set_retrieval_heads(HEADS, keys=kind)
            assert memory.core.index.take_messages() == []
            return search(memory, "heads")

    def stands() -> list[tuple[str, int, bytes]]:
        """A file that is written anew, with the same bytes too, is another one: it replaces the one that was there."""
        return [(file.name, file.stat().st_ino, file.read_bytes()) for file in sorted((folder / "index").iterdir())]

    in_bf16, files_in_bf16 = heads("bf16"), stands()
    in_bytes, files = heads(keys), stands()
    assert files != files_in_bf16
    assert in_bytes != in_bf16
    scores = {begin: score for begin, _, score in in_bf16}
    assert {begin: score for begin, _, score in in_bytes} == pytest.approx(scores, rel=0.1)
    assert heads(keys) == in_bytes
    assert stands() == files
    shutil.copy(folder / "index" / "heads", tmp_path / "heads")
    assert heads("bf16") == in_bf16
    # The index of one under the list of the other.
    index_of, list_of = (tmp_path / "heads").read_bytes(), (folder / "index" / "heads").read_bytes()
    begins = [int.from_bytes(data[-32:-24], "little") for data in (index_of, list_of)]
    (folder / "index" / "heads").write_bytes(index_of[: begins[0]] + list_of[begins[1] :])
    with everlong.Memory.open(folder) as memory:
        memory.core.index.set_retrieval_heads(HEADS)
        (message,) = memory.core.index.take_messages()
        assert '"heads"' in message
        assert search(memory, "heads") == in_bf16


def test_other_heads_and_another_encoder_make_their_own(folder: Path) -> None:
    with everlong.Memory.open(folder) as memory:
        memory.core.index.set_retrieval_heads(HEADS[:1])
        memory.core.index.set_page_vectors("another", VECTOR)
        assert len(memory.core.index.pages_without_vectors()) == memory.stats().pages
        memory.core.index.set_page_vectors("random", VECTOR + 1)
        assert len(memory.core.index.pages_without_vectors()) == memory.stats().pages
        assert memory.core.index.take_messages() == []


def test_a_reader_takes_them_and_writes_nothing(folder: Path, tmp_path: Path) -> None:
    expected = rebuilt(folder, tmp_path)
    (folder / "index" / "heads").unlink()
    stood = sorted((folder / "index").iterdir())
    with everlong.Memory.open(folder, read_only=True) as memory:
        assert index(memory) == 0
        assert all_hits(memory) == expected
        with pytest.raises(everlong.ReadOnlyMemoryError):
            memory.compact()
    assert sorted((folder / "index").iterdir()) == stood


def test_a_fork_has_them_as_they_are(folder: Path, tmp_path: Path) -> None:
    with everlong.Memory.open(folder) as memory:
        index(memory)
        memory.forget([3])
        append(memory, 2)
        assert index(memory) == 2
        hits = all_hits(memory)
        memory.fork(tmp_path / "branch").close()
    with everlong.Memory.open(folder, read_only=True) as memory:
        memory.fork(tmp_path / "of reader").close()
    for branch in ("branch", "of reader"):
        with everlong.Memory.open(tmp_path / branch) as memory:
            assert index(memory) == 0
            assert memory.core.index.take_messages() == []
            assert all_hits(memory) == hits
    assert hits == rebuilt(tmp_path / "branch", tmp_path)


def test_a_repaired_memory_is_indexed_as_it_is(folder: Path, tmp_path: Path) -> None:
    with everlong.Memory.open(folder) as memory:
        index(memory)
        segment = next((folder / "segments").iterdir())
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 1
        segment.write_bytes(data)
        assert len(memory.verify(repair=True).dropped) == 1
        index(memory)
        hits = all_hits(memory)
    assert hits == rebuilt(folder, tmp_path)
