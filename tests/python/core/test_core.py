"""The native core's Python face, against plain numpy."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import everlong
import everlong._core as _core
from everlong import errors
from support.native import DIM, HEADS, KV_HEADS, LAYERS, PAGE, Written, fill, manifest


@pytest.fixture
def memory():
    opened = _core.Memory.create(None, manifest())
    yield opened
    opened.close()


# --- Memory


@pytest.mark.parametrize("in_folder", [True, False])
def test_tensors_of_a_block_come_back(in_folder: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    tensors = {
        "bits": rng.integers(0, 2**16, (32, 24)).astype(np.uint16),  # of bfloat16
        "bool": rng.random((5,)) < 0.5,
        "empty": np.zeros((0, 7), np.int16),
        "scalar": np.array(2.5),
        **{
            np.dtype(kind).name: (100 * rng.standard_normal((2, 3))).astype(kind)
            for kind in (np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8)
        },
        "уint8": rng.integers(0, 256, (1, 1, 4)).astype(np.uint8),
    }
    folder = str(tmp_path / "m") if in_folder else None
    memory = _core.Memory.create(folder, manifest())
    block = Written(rng, 0, 0, 10, "")
    assert block.append_to(memory, tensors=tensors) == 1
    assert Written(rng, 0, 10, 5, "").append_to(memory) == 2

    def expect(memory: _core.Memory) -> None:
        found = memory.blocks.tensors(1)
        assert list(found) == sorted(tensors, key=str.encode)
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            np.testing.assert_array_equal(found[name], tensor)
        assert memory.blocks.tensors(2) == {}
        stats = memory.upkeep.stats()
        assert stats.tensor_bytes == {name: tensor.nbytes for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(memory.blocks.tensor(1, name), found[name])
            assert memory.blocks.tensor_shapes(1)[name][1] == tensor.shape
        assert memory.blocks.tensor_shapes(2) == {}
        with pytest.raises(errors.MemoryNotFoundError):
            memory.blocks.tensor(2, "ids")
        assert (stats.graph_nodes, stats.graph_edges) == (0, 0)

    expect(memory)
    with pytest.raises(errors.MemoryNotFoundError):
        memory.blocks.tensors(3)
    memory.upkeep.export_file(str(tmp_path / "exported"))
    expect(_core.Memory.import_file(str(tmp_path / "exported"), None))
    memory.upkeep.fork(str(tmp_path / "fork"))
    expect(_core.Memory.open(str(tmp_path / "fork"), read_only=True))
    if folder is not None:
        memory.close()
        memory = _core.Memory.open(folder)
        expect(memory)
    memory.blocks.forget([1])
    with pytest.raises(errors.MemoryNotFoundError):
        memory.blocks.tensors(1)
    assert memory.upkeep.stats().tensor_bytes == {}


def test_arrays_that_are_no_tensors_are_refused(memory: _core.Memory) -> None:
    rng = np.random.default_rng(3)
    block = Written(rng, 0, 0, 10, "")
    for name, array, error in [
        ("x", [1, 2], TypeError),
        ("x", np.zeros(3, np.complex64), TypeError),
        ("x", np.zeros(3, np.uint32), TypeError),
        ("x", np.zeros(3, ">f4"), TypeError),
        ("x", np.zeros((3, 4), np.float32).T, ValueError),
        ("", np.zeros(3), ValueError),
        ("__metadata__", np.zeros(3), ValueError),
        ("x" * 129, np.zeros(3), ValueError),
    ]:
        with pytest.raises(error):
            block.append_to(memory, tensors={name: array})
    with pytest.raises(ValueError, match="at most 256"):
        block.append_to(memory, tensors={str(i): np.zeros(1) for i in range(257)})
    assert memory.blocks.infos() == []
    assert block.append_to(memory) == 1


def test_a_page_tells_which_of_its_tokens_are_sinks(memory) -> None:
    block = Written(np.random.default_rng(1), 3, 0, 10, "x")
    block.append_to(memory, sink_tokens=PAGE + 1)
    pages = memory.blocks.pages_of(3, 0, 10)
    assert [page.sink_tokens for page in pages] == [PAGE, 1, 0]
    out = np.empty(memory.page_bytes(PAGE), dtype=np.uint8)
    with pytest.raises(ValueError, match=r"with 0 sinks, expected .* with 1"):
        memory.blocks.read_pages([_core.PageRef(1, 1, 3, PAGE, 2 * PAGE)], out)
    memory.blocks.read_pages([_core.PageRef(1, 1, 3, PAGE, 2 * PAGE, sink_tokens=1)], out)

    # A frame of another stream holds none of them, and gets none.
    os = _core.MemoryOs(os_config())
    os.observe(60, "read")
    placements = os.recall([_core.Offer(page) for page in pages])
    assert [(p.page, p.first_token, p.tokens) for p in placements] == [(pages[1], 1, PAGE - 1), (pages[2], 0, 2)]


def test_blocks_pages_tokens_and_keys_come_back(memory) -> None:
    written = fill(memory)
    infos = memory.blocks.infos()
    assert [(b.id, b.stream, b.begin, b.end, b.source) for b in infos] == [
        (i + 1, w.stream, w.begin, w.end, w.source) for i, w in enumerate(written)
    ]
    assert (infos[0].pages, infos[0].payload_bytes) == (3, len(written[0].payload()))
    assert (infos[0].created_at, infos[0].tags, infos[0].sink_tokens) == (12.5, ["x"], 0)
    assert memory.upkeep.stats().tokens == 80
    assert memory.upkeep.stats().pages == len(memory.blocks.pages()) == 24
    assert memory.page_bytes(PAGE) * 2 + memory.page_bytes(2) == len(written[0].payload())

    for stream in (0, 1):
        of_stream = [w for w in written if w.stream == stream]
        ids = np.concatenate([w.ids for w in of_stream])
        assert memory.blocks.stream_end(stream) == len(ids) == 40
        np.testing.assert_array_equal(memory.blocks.token_ids(stream, 7, 33), ids[7:33])
        pages = memory.blocks.pages_of(stream, 0, 40)
        out = np.empty(sum(memory.page_bytes(p.end - p.begin) for p in pages), dtype=np.uint8)
        memory.blocks.read_pages(pages, out)
        np.testing.assert_array_equal(out, np.concatenate([w.payload() for w in of_stream]))
        for page in pages:
            block = written[page.block - 1]
            for layer in range(LAYERS):
                np.testing.assert_array_equal(
                    memory.blocks.read_keys(page, layer),
                    block.keys[layer, :, page.begin - block.begin : page.end - block.begin],
                )
    assert memory.search.recent_pages(0, 35, 1) == memory.blocks.pages_of(0, 20, 30)
    assert memory.blocks.stream_end(9) == 0
    with pytest.raises(errors.MemoryNotFoundError, match="token 40 of stream 0"):
        memory.blocks.pages_of(0, 39, 41)


@pytest.mark.parametrize("keys", ["bf16", "int8", "e4m3"])
def test_search_finds_the_page_of_the_key(memory, keys: str) -> None:
    written = fill(memory)
    memory.index.set_retrieval_heads(HEADS, keys=keys)
    assert memory.index.retrieval_heads() == HEADS
    for block in written:
        q = np.stack([4 * block.keys[layer, kv_head, 6] for layer, _, kv_head in HEADS])[None]
        result = memory.search.find(
            token_ids=block.ids[6:7], head_queries=np.ascontiguousarray(q), kinds=["heads"], max_groups=1, neighbours=0
        )
        (group,) = result.groups
        assert (group.stream, group.begin, group.end) == (block.stream, block.begin + 4, block.begin + 8)
        assert group.pages == memory.blocks.pages_of(block.stream, block.begin + 4, block.begin + 8)
        assert group.found_by == ["heads"]
        assert group.source == block.source
        assert 0 < result.top_mass <= 1
        assert result.decisiveness >= 1


@pytest.mark.skipif(
    torch._C._dispatch_has_kernel_for_dispatch_key("everlong::archive_kv", "CUDA"),
    reason="this build has a GPU's kernels",
)
def test_heads_on_a_gpu_need_a_build_for_one(memory) -> None:
    with pytest.raises(ValueError, match="device is 2; expected None: everlong was built without a GPU"):
        memory.index.set_retrieval_heads(HEADS, device=2, device_bytes=1 << 20)


def test_many_pages_are_searched_by_two_levels(memory) -> None:
    rng = np.random.default_rng(3)
    written = [Written(rng, 0, i * 10, 10, "") for i in range(60)]
    for block in written:
        block.keys[..., DIM * 3 // 8 :] *= 0.02  # they differ along the axes that the first level keeps
        block.keys *= 5 / np.linalg.norm(block.keys, axis=-1, keepdims=True)
        block.append_to(memory)
    asked = [np.stack([4 * w.keys[layer, head, 6] for layer, _, head in HEADS])[None].copy() for w in written]

    def found(block: Written, q: Any, groups: int) -> Any:
        everywhere = {"kinds": ["heads"], "neighbours": 0, "token_budget": 1 << 20, "least_share": 0}
        return memory.search.find(token_ids=block.ids[6:7], head_queries=q, max_groups=groups, **everywhere).groups

    best = []
    # The first level leaves 64 pages, and of the best of them those beside.
    for coarse_from, least, most in ((1000, 180, 180), (100, 64, 179)):
        memory.index.set_retrieval_heads(HEADS, coarse_from)
        assert least <= sum(len(group.pages) for group in found(written[0], asked[0], 1000)) <= most
        rankings = [
            memory.search.rankings(1, token_ids=block.ids[6:7], head_queries=q, kinds=["heads"])
            for block, q in zip(written, asked, strict=True)
        ]
        # Groups that share a page may be as good.
        best.append([(pages.pages[0].begin, pages.scores[0], groups.scores[0]) for pages, groups in rankings])
    (one_places, *one_scores), (two_places, *two_scores) = np.transpose(best[0]), np.transpose(best[1])
    np.testing.assert_array_equal(two_places, one_places)
    # What the pages that were left out have of the softmax is an estimate, of four bits a number.
    np.testing.assert_allclose(two_scores, one_scores, rtol=0.1)


def test_search_by_word_filter_and_mean(memory) -> None:
    written = fill(memory)
    written_ids = np.array([7777], dtype=np.int32)
    rare = Written(np.random.default_rng(2), 5, 0, 10, "rare")
    rare.ids[9] = 7777
    rare.append_to(memory)
    (group,) = memory.search.find(token_ids=written_ids, neighbours=1).groups
    assert (group.stream, group.begin, group.end, group.found_by) == (
        5,
        0,
        10,
        ["lexical"],
    )  # what its group names, too
    assert memory.search.find(token_ids=written_ids, stream=5, resident_from=8).groups == []
    assert len(memory.search.find(token_ids=written_ids, stream=5, resident_from=9).groups) == 1, (
        "a part of it has left"
    )
    assert memory.search.find(token_ids=written_ids, sources=["odd"]).groups == []

    mean = written[3].keys[-1].mean(axis=1).reshape(-1)
    (group,) = memory.search.find(token_ids=written_ids, mean_query=mean, kinds=["mean_pool"], max_groups=1).groups
    assert {page.block for page in group.pages} & {4}
    assert group.found_by == ["mean_pool"]
    assert group.score == pytest.approx(1, abs=1e-5)


@given(
    st.lists(st.sampled_from(["a", "b", "c"]), max_size=2),
    st.sets(st.sampled_from(["x", "y"])),
    st.one_of(st.none(), st.integers(0, 12)),
    st.one_of(st.none(), st.integers(0, 12)),
    st.integers(0, 1000),
)
def test_a_filter_prunes_before_attention(sources, tags, since, before, seed: int) -> None:
    """The softmax runs over the pages that pass and no others: masses against fp64."""
    rng = np.random.default_rng(seed)
    memory = _core.Memory.create(None, manifest())
    kept: list[tuple[int, np.ndarray[Any, Any]]] = []  # first token of each page that passes, and its keys
    for block in range(10):
        written = Written(rng, 0, block * 10, 10, str(rng.choice(["a", "b", "c"])))
        labels = [tag for tag in ("x", "y") if rng.random() < 0.6]
        written.append_to(memory, tags=labels, created_at=float(block))
        if (
            (not sources or written.source in sources)
            and tags <= set(labels)
            and (since is None or block >= since)
            and (before is None or block < before)
        ):
            kept += [(written.begin + first, written.keys[:, :, first : first + PAGE]) for first in range(0, 10, PAGE)]
    memory.index.set_retrieval_heads(HEADS)
    q = rng.standard_normal((1, len(HEADS), DIM)).astype(np.float32)
    token = np.array([1], dtype=np.int32)
    asked: dict[str, Any] = {
        "token_ids": token,
        "head_queries": q,
        "kinds": ["heads"],
        "max_groups": 50,
        "neighbours": 0,
        "token_budget": 1000,
        "least_share": 0,
        "sources": sources,
        "tags": sorted(tags),
        "since": since,
        "before": before,
    }
    result = memory.search.find(**asked)
    found = {page.begin for group in result.groups for page in group.pages}
    assert found == {begin for begin, _ in kept}
    if kept:
        mass = np.zeros(len(kept))
        for head, (layer, _, kv_head) in enumerate(HEADS):
            of_page = [np.exp(keys[layer, kv_head].astype(np.float64) @ q[0, head] / DIM**0.5) for _, keys in kept]
            mass += np.array([scores.sum() for scores in of_page]) / sum(scores.sum() for scores in of_page)
        assert result.top_mass == pytest.approx(mass.max() / len(HEADS), rel=0.03)
        ranking = memory.search.rankings(1, **asked)[0]
        assert ranking.scores[0] == pytest.approx(mass.max() * memory.search.idf(token)[0], rel=0.03)


@given(
    st.integers(0, 1000),
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.floats(0.5, 6),
    st.sampled_from([40, 160]),  # pages; a search looks at 128 of each ranking
)
def test_a_fused_score_is_of_a_mixture_of_what_the_parts_see(
    seed: int, asked: list[int], sharpness: float, count: int
) -> None:
    """The formula of everlong/index/fusion.h in fp64 over the rankings of heads and of words, a page a group."""
    rng = np.random.default_rng(seed)
    memory = _core.Memory.create(None, manifest())
    # Neighbours in groups of three.
    pages = [Written(rng, 0, i * PAGE, PAGE, f"source {i // 3}") for i in range(count)]
    for page in pages:
        page.append_to(memory)
    memory.index.set_retrieval_heads(HEADS)
    ids = np.array(asked, dtype=np.int32)
    q = rng.standard_normal((len(ids), len(HEADS), DIM))
    q[0] = [pages[seed % count].keys[layer, kv_head, 1] for layer, _, kv_head in HEADS]
    queries = (sharpness * q).astype(np.float32)
    whole = {"heads": float(memory.search.idf(ids).sum()) * len(HEADS), "lexical": 0.0}
    for token in set(asked):
        holding = sum(token in page.ids for page in pages)
        whole["lexical"] += max(math.log((count - holding + 0.5) / (holding + 0.5)), 1e-6)

    weights = {  # of a statement, and of prose
        ("heads", "page"): (60.0, 2.0),
        ("heads", "group"): (0.0, 6.0),
        ("lexical", "page"): (1.5, 0.31),
        ("lexical", "group"): (0.0, 14.7),
    }
    rankings = memory.search.rankings(256, token_ids=ids, head_queries=queries)
    assert [(ranking.part, ranking.granularity) for ranking in rankings] == list(weights)
    evidence = np.zeros((count, 2))
    named: set[int] = set()
    for ranking in rankings:
        assert ranking.scores == sorted(ranking.scores, reverse=True)
        assert ranking.unnamed == (ranking.scores[-1] if len(ranking.scores) == 256 else 0)
        assert ranking.whole == pytest.approx(whole[ranking.part], rel=1e-5)
        for hit, score in zip(ranking.pages, ranking.scores, strict=True):
            share, of_unnamed = score / ranking.whole, ranking.unnamed / ranking.whole
            above = (
                share - of_unnamed
                if (ranking.part, ranking.granularity) == ("heads", "page")
                else math.sqrt(share) - math.sqrt(of_unnamed)
            )
            evidence[hit.begin // PAGE] += above * np.array(weights[ranking.part, ranking.granularity])
            named.add(hit.begin // PAGE)
    chances = np.array([0.7, 0.3]) * np.exp(evidence - np.logaddexp.reduce(evidence, axis=0))
    of_none = np.array([0.7, 0.3]) * np.exp(-np.logaddexp.reduce(evidence, axis=0))
    expected = np.log(chances.sum(axis=1)) - np.log(of_none.sum())
    found = memory.search.find(
        token_ids=ids, head_queries=queries, max_groups=256, neighbours=1, token_budget=10_000, least_share=0
    ).groups
    assert [group.score for group in found] == sorted((group.score for group in found), reverse=True)
    fused = {
        page.begin // PAGE: score
        for group in found
        for page, score in zip(group.pages, group.page_scores, strict=True)
        if score > -math.inf  # a neighbour that nothing named
    }
    assert fused.keys() == named
    for number, score in fused.items():
        assert score == pytest.approx(expected[number], rel=2e-3, abs=1e-3)


@given(st.integers(0, 1000), st.sampled_from([1, 9, 200]))
def test_a_group_has_the_mass_of_its_pages_and_their_words_as_one_text(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    memory = _core.Memory.create(None, manifest())
    pages = [Written(rng, 0, i * PAGE, PAGE, str(rng.choice(["a", "b"]))) for i in range(30)]
    for page in pages:
        page.append_to(memory)
    memory.index.set_retrieval_heads(HEADS)
    ids = np.array([*pages[7].ids[:3], 3], dtype=np.int32)
    queries = rng.standard_normal((len(ids), len(HEADS), DIM)).astype(np.float32)
    groups = [
        [j for j in (i - 1, i, i + 1) if 0 <= j < len(pages) and pages[j].source == pages[i].source]
        for i in range(len(pages))
    ]
    every = {(of.part, of.granularity): of for of in memory.search.rankings(500, token_ids=ids, head_queries=queries)}

    def scores(part: str, granularity: str) -> dict[int, float]:
        ranking = every[part, granularity]
        return {page.begin // PAGE: score for page, score in zip(ranking.pages, ranking.scores, strict=True)}

    mass = scores("heads", "page")
    for middle, score in scores("heads", "group").items():
        assert score == pytest.approx(sum(mass[page] for page in groups[middle]), rel=1e-5)
    words = scores("lexical", "group")
    for middle, group in enumerate(groups):
        expected = 0.0
        for token in set(ids.tolist()):
            holding = sum(token in page.ids for page in pages)
            idf = max(math.log((len(pages) - holding + 0.5) / (holding + 0.5)), 1e-6)
            count = sum(list(pages[page].ids).count(token) for page in group)
            expected += idf * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(group) / 3))
        assert words.get(middle, 0.0) == pytest.approx(expected, rel=1e-5)
    for ranking in memory.search.rankings(k, token_ids=ids, head_queries=queries):
        whole = every[ranking.part, ranking.granularity]
        assert ranking.pages == whole.pages[:k]
        assert ranking.scores == whole.scores[:k]
    with pytest.raises(ValueError, match="k is 0"):
        memory.search.rankings(0, token_ids=ids)


def test_idf(memory) -> None:
    written = fill(memory)
    pages = [w.ids[i : i + PAGE] for w in written for i in range(0, 10, PAGE)]
    ids = np.arange(50, dtype=np.int32)
    expected = [math.log(1 + len(pages) / max(1, sum(token in page for page in pages))) for token in ids]
    np.testing.assert_allclose(memory.search.idf(ids), expected, rtol=1e-6)


def test_random_pages_are_drawn_by_seed(memory) -> None:
    fill(memory)
    draw = memory.search.random_pages(0, 40, 5, 3)
    assert draw == memory.search.random_pages(0, 40, 5, 3)
    assert len({(p.block, p.page) for p in draw}) == 5
    assert all(p.stream != 0 or p.begin < 12 for p in memory.search.random_pages(0, 12, 100, 1))


def test_forget(memory) -> None:
    fill(memory)
    memory.blocks.forget([2, 5])
    assert {page.block for page in memory.blocks.pages()} == {1, 3, 4, 6, 7, 8}
    assert [block.id for block in memory.blocks.infos()] == [1, 3, 4, 6, 7, 8]
    with pytest.raises(errors.MemoryNotFoundError):
        memory.blocks.forget([1, 99])
    with pytest.raises(errors.MemoryNotFoundError):
        memory.blocks.pages_of(1, 0, 5)


def test_a_folder_comes_back(tmp_path) -> None:
    folder = str(tmp_path / "m")
    memory = _core.Memory.create(folder, manifest(attributes={"a": "b"}))
    fill(memory)
    question = np.array([3, 4], dtype=np.int32)
    found = [(g.pages, g.score) for g in memory.search.find(token_ids=question).groups]
    assert found
    memory.set_attribute("c", "d")
    with pytest.raises(errors.MemoryBusyError):
        _core.Memory.open(folder)
    with pytest.raises(errors.MemoryExistsError):
        _core.Memory.create(folder, manifest())
    memory.close()
    reader = _core.Memory.open(folder, read_only=True)
    assert reader.read_only
    assert reader.manifest().attributes == {"a": "b", "c": "d"}
    assert [(g.pages, g.score) for g in reader.search.find(token_ids=question).groups] == found
    block = Written(np.random.default_rng(2), 3, 0, 4, "")
    with pytest.raises(errors.ReadOnlyMemoryError):
        block.append_to(reader)
    reader.close()


def test_the_host_budget_counts_the_indexes(tmp_path) -> None:
    budget = 1_000_000
    with everlong.Memory.open(tmp_path / "m", create=manifest(), host_bytes=budget) as memory:
        fill(memory.core, blocks=400, tokens=20)
        memory.core.upkeep.flush()
        stats = memory.stats()
        assert stats.payload_bytes > budget > stats.index_bytes > 0
        assert 0 < stats.host_bytes <= max(budget - stats.index_bytes, budget // 8)
    with everlong.Memory.open(None, create=manifest(), host_bytes=budget) as memory:
        with pytest.raises(errors.CapacityError, match="less what its indexes take"):
            fill(memory.core, blocks=400, tokens=20)
        stats = memory.stats()
        assert stats.host_bytes <= budget - stats.index_bytes // 2  # the last block's own index came after it


def test_fingerprint() -> None:
    _core.check_fingerprint(manifest(), weights="w", rope="r", tokenizer="t")
    with pytest.raises(errors.ModelMismatchError, match=r"(?s)rope.*tokenizer"):
        _core.check_fingerprint(manifest(), weights="w", rope="R", tokenizer="T")


def test_missing_and_damaged_folders(tmp_path) -> None:
    with pytest.raises(errors.MemoryNotFoundError) as caught:
        _core.Memory.open(str(tmp_path / "none"))
    assert isinstance(caught.value, FileNotFoundError)

    folder = tmp_path / "m"
    memory = _core.Memory.create(str(folder), manifest())
    written = fill(memory)
    memory.close()
    (segment,) = (folder / "segments").iterdir()
    data = bytearray(segment.read_bytes())
    data[data.index(written[0].payload()[:64].tobytes())] ^= 1
    segment.write_bytes(data)
    memory = _core.Memory.open(str(folder))
    with pytest.raises(errors.CorruptMemoryError, match="block 1"):
        memory.blocks.read_keys(memory.blocks.pages()[0], 0)
    memory.close()

    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text[: len(text) // 2])
    with pytest.raises(errors.CorruptMemoryError, match=r"manifest\.json"):
        _core.Memory.open(str(folder))


def test_closed_memories_say_so(memory) -> None:
    memory.close()
    memory.close()
    calls = [
        memory.blocks.pages,
        memory.blocks.infos,
        memory.manifest,
        memory.upkeep.stats,
        memory.index.retrieval_heads,
        lambda: memory.read_only,
        lambda: memory.search.find(token_ids=np.array([1], dtype=np.int32)),
        lambda: memory.page_bytes(4),
        lambda: memory.blocks.stream_end(0),
    ]
    for call in calls:
        with pytest.raises(errors.ClosedError):
            call()


def test_search_takes_queries_of_their_own_shape_alone(memory) -> None:
    written = fill(memory)
    memory.index.set_retrieval_heads(HEADS)
    ids = written[0].ids[: len(HEADS)]
    for shape in ((DIM, len(HEADS), 3), (3, DIM, len(HEADS)), (1, 3 * len(HEADS), DIM), (2, len(HEADS), DIM)):
        with pytest.raises(ValueError, match=r"head_queries: shape \[.*expected \[tokens, heads, D\] = \[3, 3, 8\]"):
            memory.search.find(token_ids=ids, head_queries=np.ones(shape, dtype=np.float32), kinds=["heads"])
    memory.search.find(token_ids=ids, head_queries=np.ones((3, len(HEADS), DIM), dtype=np.float32), kinds=["heads"])
    for kind in ("mean_pool", "hnsw"):
        for factor in (2, 3):
            query = np.ones(factor * KV_HEADS * DIM, dtype=np.float32)
            with pytest.raises(ValueError, match=rf"mean_query has {16 * factor} numbers, expected 16"):
                memory.search.find(token_ids=ids, mean_query=query, kinds=[kind])
        with pytest.raises(ValueError, match=r"mean_query: shape \[1, 16\], expected \[Hkv \* D\] = \[16\]"):
            memory.search.find(token_ids=ids, mean_query=np.ones((1, 16), np.float32), kinds=[kind])


def test_an_input_that_no_part_takes_is_named(memory) -> None:
    ids = fill(memory)[0].ids[:1]
    with pytest.raises(TypeError, match=r"'max_grups' is no argument"):
        memory.search.find(token_ids=ids, max_grups=np.ones(1, np.float32))
    with pytest.raises(TypeError, match=r"page_query: expected .* float32"):
        memory.search.find(token_ids=ids, page_query=np.ones(1))
    assert memory.search.find(token_ids=ids, page_query=None).groups


def test_a_graph_has_no_more_links_than_its_file_may_say() -> None:
    graph = {"dimension": 4, "metric": "l2", "ef_construction": 10, "ef": 10, "exact_below": 0}
    assert _core.VectorIndex.hnsw(**graph, links=10_000).size == 0
    with pytest.raises(ValueError, match=r"links: 10001, expected at most 10000"):
        _core.VectorIndex.hnsw(**graph, links=10_001)


def test_transfers_want_a_buffer() -> None:
    engine = _core.TransferEngine(device=None, pool_bytes=1 << 20)
    for hand_over in (engine.to_device, engine.to_host):
        with pytest.raises(TypeError):
            hand_over(None, 0)


def test_a_memory_that_nobody_closed_is_let_go_without_the_gil(tmp_path) -> None:
    """Dropping the last reference writes what is queued; other threads go on meanwhile."""
    memory = _core.Memory.create(str(tmp_path / "m"), manifest())
    fill(memory)
    out = np.zeros(sum(memory.page_bytes(p.end - p.begin) for p in memory.blocks.pages()), dtype=np.uint8)
    reads = memory.blocks.start_read_pages(memory.blocks.pages(), 0, LAYERS, out)
    del memory
    waiting = [threading.Thread(target=reads.wait) for _ in range(4)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    assert out.any()
    del reads
    again = _core.Memory.open(str(tmp_path / "m"))
    assert len(again.blocks.infos()) == 8
    again.close()


def test_reads_keep_what_they_fill() -> None:
    memory = _core.Memory.create(None, manifest())
    fill(memory)
    pages = memory.blocks.pages()[:1]
    out = np.zeros(memory.page_bytes(pages[0].end - pages[0].begin), dtype=np.uint8)
    filled = weakref.ref(out)
    reads = memory.blocks.start_read_pages(pages, 0, LAYERS, out)
    del out
    assert filled() is not None
    reads.wait()
    del reads
    assert filled() is None


def test_reads_that_have_begun_outlive_close(tmp_path) -> None:
    """close() comes while another thread's read waits for a large block that is being written."""
    tokens, page = 512, 64
    big = manifest(layers=4, kv_heads=8, head_dim=512, page_tokens=page, codec="bf16")
    memory = _core.Memory.create(str(tmp_path / "m"), big, host_bytes=0)
    size = memory.page_bytes(page)
    payload = np.random.default_rng(3).integers(0, 100, tokens // page * size).astype(np.uint8)
    out = np.zeros(size, dtype=np.uint8)
    started, began = threading.Event(), []

    def read() -> None:
        started.set()
        began.append(memory.blocks.start_read_pages(last, 0, 4, out))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # the reader goes on until the core lets go of the interpreter
    try:
        memory.blocks.append(
            stream=0,
            begin=0,
            end=tokens,
            sink_tokens=0,
            source="",
            created_at=0.0,
            tags=[],
            token_ids=np.zeros(tokens, dtype=np.int32),
            payload=payload,
        )
        last = memory.blocks.pages()[-1:]
        reader = threading.Thread(target=read)
        reader.start()
        started.wait()
        memory.close()
        reader.join()
    finally:
        sys.setswitchinterval(interval)
    assert began, "the memory was closed under a read that had begun"
    began[0].wait()
    assert np.array_equal(out, payload[-size:])


def test_arrays_are_taken_as_they_are_or_refused_by_name(memory) -> None:
    block = Written(np.random.default_rng(2), 0, 0, 10, "")
    ids, payload = block.ids, block.payload()
    for name, value, error in [
        ("token_ids", ids.astype(np.int64), TypeError),
        ("token_ids", ids.tolist(), TypeError),
        ("token_ids", np.repeat(ids, 2)[::2], ValueError),
        ("token_ids", ids.reshape(2, 5), ValueError),
        ("token_ids", ids[:9], ValueError),
        ("payload", payload.view(np.int8), TypeError),
        ("payload", payload[:-1], ValueError),
        ("payload", payload.tobytes(), TypeError),
    ]:
        with pytest.raises(error, match=name):
            block.append_to(memory, **{name: value})
    assert memory.blocks.infos() == []
    block.append_to(memory)
    memory.index.set_retrieval_heads(HEADS)
    q = np.zeros((1, 3, DIM), dtype=np.float32)
    for queries, error in [
        (q.astype(np.float64), TypeError),
        (q[0], ValueError),
        (q[:, :2].copy(), ValueError),
        (np.full_like(q, np.nan), ValueError),
        (np.asfortranarray(np.zeros((2, 3, DIM), dtype=np.float32)), ValueError),
    ]:
        with pytest.raises(error):
            memory.search.find(token_ids=ids[:1], head_queries=queries)
    assert memory.index.device_use("heads") == (0, 0)
    with pytest.raises(ValueError, match='keys: "int4", expected "bf16"'):
        memory.index.set_retrieval_heads(HEADS, keys="int4")
    with pytest.raises(ValueError, match="kinds"):
        memory.search.find(token_ids=ids[:1], kinds=["guess"])
    with pytest.raises(ValueError, match="kinds"):
        memory.search.find(token_ids=ids[:1], kinds=[])
    page = memory.blocks.pages()[0]
    out = np.empty(memory.page_bytes(PAGE), dtype=np.uint8)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out"):
        memory.blocks.read_pages([page], out)
    with pytest.raises(ValueError, match="out"):
        memory.blocks.read_pages([page], np.empty(3, dtype=np.uint8))
    with pytest.raises(ValueError, match="tokens"):
        memory.page_bytes(PAGE + 1)
    page.end -= 1
    with pytest.raises(ValueError, match="block 1 page 0"):
        memory.blocks.read_keys(page, 0)


def test_threads_share_a_memory(memory) -> None:
    first = Written(np.random.default_rng(3), 0, 0, 10, "")
    first.append_to(memory)
    failed: list[BaseException] = []
    searches = [0, 0]
    searched = threading.Barrier(3)
    done = threading.Event()

    def read(number: int) -> None:
        try:
            while not done.is_set():
                assert memory.search.find(token_ids=first.ids).groups
                np.testing.assert_array_equal(memory.blocks.token_ids(0, 0, 10), first.ids)
                searches[number] += 1
                if searches[number] == 1:
                    searched.wait()
        except BaseException as error:
            failed.append(error)
            searched.abort()

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        with contextlib.suppress(threading.BrokenBarrierError):  # `failed` says why
            searched.wait()
        before = list(searches)
        rng = np.random.default_rng(4)
        for i in range(1, 40):
            Written(rng, 0, 10 * i, 10, "").append_to(memory)
        while not failed and any(now == then for now, then in zip(searches, before, strict=True)):
            time.sleep(0.001)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failed
    assert min(searches) > 1
    assert memory.blocks.stream_end(0) == 400


# --- MemoryOs


def os_config(**changes: int) -> _core.MemoryOsConfig:
    fields = {
        "frame_tokens": 100,
        "sink_tokens": 4,
        "recalled_tokens": 20,
        "rolling_tokens": 40,
        "evict_tokens": 8,
        "block_tokens": 16,
        "prompt_rolling_tokens": 40,  # a prompt moves nothing
    }
    return _core.MemoryOsConfig(**(fields | changes))


def test_config_has_the_cores_defaults_and_takes_only_fields() -> None:
    config = _core.MemoryOsConfig()
    assert config.frame_tokens > config.rolling_tokens + config.recalled_tokens + config.sink_tokens
    assert config.recall_prompt is True
    assert config.recall_recent is False
    _core.MemoryOs(config)
    config.rolling_tokens = 7
    assert config.rolling_tokens == 7
    assert os_config(stream=3).stream == 3
    with pytest.raises(TypeError, match="rolling"):
        _core.MemoryOsConfig(rolling=7)
    with pytest.raises(TypeError, match=r"rolling_tokens.*'7'"):
        _core.MemoryOsConfig(rolling_tokens="7")
    with pytest.raises(ValueError, match="rolling_tokens is 15"):
        _core.MemoryOs(os_config(rolling_tokens=15))


def test_actions_in_order() -> None:
    os = _core.MemoryOs(os_config(recall_recent=True, recent_every=10, recent_blocks=2))
    assert (os.room(), os.next_position(), os.state, os.stream_end) == (76, 0, "generating", 0)
    assert not os.evicted
    archive, *rest = os.observe(60, "generated")
    assert isinstance(archive, _core.Archive)
    assert (archive.begin, archive.end, archive.sink_tokens) == (0, 16, 4)
    assert [type(action).__name__ for action in rest] == ["Archive", "Archive", "Evict", "Recall"]
    evict, recall = rest[-2:]
    assert (evict.tokens, evict.delta) == (16, 4)
    assert (recall.trigger, recall.blocks) == ("recent", 2)
    assert (os.rolling, os.sinks, os.archived_until, os.evicted) == ((20, 60), 4, 48, True)
    (tail,) = os.end_of_text()
    assert (tail.begin, tail.end) == (48, 60)


def test_recall_and_its_trace() -> None:
    os = _core.MemoryOs(os_config())
    os.observe(60, "read")
    (ask,) = os.begin_prompt()
    assert (ask.trigger, os.state) == ("prompt", "retrieving")
    pages = [_core.PageRef(1, 0, 0, 0, 8), _core.PageRef(1, 1, 0, 8, 16), _core.PageRef(9, 0, 6, 0, 8)]
    placements = os.recall([_core.Offer(page) for page in pages])
    assert [(p.page, p.first_token, p.tokens, p.position) for p in placements] == [
        (pages[0], 4, 4, 4),
        (pages[1], 0, 8, 8),
        (pages[2], 0, 8, 16),
    ]
    assert (os.state, os.recalled_tokens) == ("generating", 20)
    os.clear_recalled()
    assert os.recalled_tokens == 0
    with_sinks = _core.PageRef(9, 0, 6, 0, 8, sink_tokens=3)
    assert with_sinks != pages[2]
    (placement,) = os.branch().recall([_core.Offer(with_sinks)])
    assert (placement.first_token, placement.tokens, placement.page.sink_tokens) == (3, 5, 3)
    events = os.trace()
    assert [e["what"] for e in events] == ["archive", "archive", "archive", "evict", "recall", "restore", "clear"]
    assert events[0] == {
        "stream": 0,
        "stream_position": 60,
        "state": "archiving",
        "what": "archive",
        "begin": 0,
        "end": 16,
        "tokens": 16,
        "restored": [],
        "trigger": None,
        "ended_by": "length",
        "branched_at": None,
    }
    assert events[4]["trigger"] == "prompt"
    assert events[5]["restored"] == [
        {"block": 1, "stream": 0, "begin": 4, "end": 16},
        {"block": 9, "stream": 6, "begin": 0, "end": 8},
    ]
    assert json.loads(json.dumps(events)) == events


def test_a_trim_is_answered_before_anything_else_is_decided() -> None:
    os = _core.MemoryOs(os_config(kept_tokens=16, kept_share=4, kept_rungs=2, frame_tokens=140))
    actions = os.observe(60, "read")
    assert [type(action).__name__ for action in actions] == ["Archive", "Trim"] * 3 + ["Evict"]
    trims = [action for action in actions if isinstance(action, _core.Trim)]
    assert [(trim.begin, trim.end, trim.tokens, trim.runs) for trim in trims] == [
        (0, 16, 4, [(4, 16)]),
        (16, 32, 4, [(16, 32)]),
        (32, 48, 4, [(32, 48)]),
    ]
    for decide in (
        lambda: os.observe(1, "read"),
        lambda: os.raise_signal("summarize"),
        os.end_of_text,
        os.begin_prompt,
        os.clear_recalled,
        os.branch,
        lambda: os.recall([]),
        lambda: os.resume(0, []),
    ):
        with pytest.raises(ValueError, match=r"the Trim of block \[0, 16\) is not answered"):
            decide()
    for tokens, named in (
        ([3], "3 is in none"),
        ([16], "16 is in none"),
        ([5, 5], "5 is named twice"),
        ([*range(4, 9)], "5 of"),
    ):
        with pytest.raises(ValueError, match=named):
            os.choose(tokens)
    os.choose([9, 5])
    os.choose([30, 17, 16])
    os.choose([])
    with pytest.raises(ValueError, match="no Trim waits"):
        os.choose([])
    assert (os.kept_held, os.kept_shown, os.kept_position) == ([5, 9, 16, 17], [5, 9, 16, 17], 4)
    assert os.kept == {"until": 20, "blocks": [(0, 16, 0, [9, 5]), (16, 32, 0, [30, 17, 16])]}
    assert json.loads(json.dumps(os.kept))["blocks"][0] == [0, 16, 0, [9, 5]]
    assert os.open_from == 48
    (trim,) = (event for event in os.trace() if event["what"] == "trim" and event["begin"] == 16)
    assert (trim["end"], trim["tokens"]) == (32, 3)
    (placement,) = os.recall([_core.Offer(_core.PageRef(1, 0, 0, 0, 8, sink_tokens=4))])
    assert (placement.tokens, os.kept_shown) == (4, [9, 16, 17])
    pages = [_core.PageRef(1 + begin // 16, begin // 8 % 2, 0, begin, begin + 8) for begin in range(0, 48, 8)]
    again = _core.MemoryOs(os_config(kept_tokens=16, kept_share=4, kept_rungs=2, frame_tokens=140))
    again.resume(48, pages, rolling_from=20, kept=os.kept)
    assert (again.kept, again.kept_shown) == (os.kept, os.kept_held)


def test_trace_of_a_branch() -> None:
    os = _core.MemoryOs(os_config())
    os.observe(60, "read")
    with pytest.raises(ValueError, match="branch"):
        os.take_trace(os)
    branch = os.branch()
    assert not branch.archiving
    branch.begin_prompt()
    before = os.trace()
    os.take_trace(branch)
    (event,) = os.trace()[len(before) :]
    assert (event["what"], event["trigger"], event["branched_at"]) == ("recall", "prompt", 60)
    assert {event["branched_at"] for event in before} == {None}


def test_misuse_raises_instead_of_aborting() -> None:
    os = _core.MemoryOs(os_config())
    with pytest.raises(errors.CapacityError, match="room for 76"):
        os.observe(77, "read")
    with pytest.raises(ValueError, match="tokens"):
        os.observe(-1, "read")
    with pytest.raises(ValueError, match="origin"):
        os.observe(1, "heard")
    with pytest.raises(ValueError, match="stream_end"):
        os.resume(-1, [])
    with pytest.raises(ValueError, match="order of time"):
        os.resume(16, [_core.PageRef(1, 1, 0, 8, 16), _core.PageRef(1, 0, 0, 0, 8)])
    assert os.stream_end == 0


@given(st.lists(st.tuples(st.integers(1, 36), st.sampled_from(["read", "prompt", "generated"])), max_size=60))
def test_a_stream_is_archived_whole_and_a_resumed_frame_is_its_end(steps: list[tuple[int, str]]) -> None:
    os = _core.MemoryOs(os_config())
    archived: list[tuple[int, int]] = []
    for tokens, origin in steps:
        before = os.stream_end
        actions = os.observe(min(tokens, os.room()), origin)
        archived += [(a.begin, a.end) for a in actions if isinstance(a, _core.Archive)]
        assert os.room() >= 1
        assert os.next_position() <= 100
        assert before < os.stream_end
    archived += [(a.begin, a.end) for a in os.end_of_text() if isinstance(a, _core.Archive)]
    end = os.stream_end
    assert [t for span in archived for t in range(*span)] == list(range(end))

    pages = [
        _core.PageRef(block + 1, page, 0, first, min(first + 4, span[1]))
        for block, span in enumerate(archived)
        for page, first in enumerate(range(*span, 4))
    ]
    resumed = _core.MemoryOs(os_config())
    frame = {
        p.position + i: p.page.begin + p.first_token + i for p in resumed.resume(end, pages) for i in range(p.tokens)
    }
    sinks, newest = range(min(4, end)), range(max(4, end - 40), end)
    assert list(frame.values()) == [*sinks, *newest]
    offset = 0 if end <= 44 else 24 - newest.start
    assert list(frame) == [*sinks, *(t + offset for t in newest)]
    assert resumed.next_position() == max([*frame, -1]) + 1
    assert resumed.archived_until == end
