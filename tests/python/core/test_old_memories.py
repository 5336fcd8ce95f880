"""Memories of format 1, as its last release wrote them (tests/data/schema1): they open, migrate, answer the same."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everlong
from everlong import _core
from support import TESTS
from support.memory_answers import answers, queries, turn_on

DATA = TESTS / "data" / "schema1"


@pytest.fixture(params=["kv", "text"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(name: str, tmp_path: Path) -> Path:
    with tarfile.open(DATA / f"{name}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / name


def expect_same(core: Any, name: str, *, rebuilt: bool | None = None) -> None:
    """Ask with every index. `rebuilt`: whether saved ones are rebuilt, each with a message; None: none are there.

    The embeddings are the caller's: they are taken up as they are.
    """
    recorded = json.loads((DATA / f"{name}.json").read_text())
    turn_on(core)
    said = answers(core)
    searches = [answer.pop("searches") | {"filtered": answer.pop("filtered")} for answer in (recorded, said)]
    assert said == recorded
    before, now = searches
    assert before.keys() == now.keys()
    asked = queries(core.manifest().head_dim, core.manifest().kv_heads)
    asked = {name: asked[name] for name in ("token_ids", "head_queries") if name == "token_ids" or "heads" in before}
    for kinds, old in before.items():
        if kinds in ("mean_pool", "hnsw", "embedding"):
            new = now[kinds]
            assert [(group["pages"], group["source"]) for group in new] == [
                (group["pages"], group["source"]) for group in old
            ]
            np.testing.assert_allclose([group["score"] for group in new], [group["score"] for group in old], rtol=1e-5)
        elif kinds in ("heads", "lexical", "filtered"):
            # Format 1 ranked by lone pages alone: what it said of a page is what is said of it now.
            filters: dict[str, Any] = {"tags": ["a"], "sources": ["letters"]} if kinds == "filtered" else {}
            part = "lexical" if kinds == "filtered" else kinds
            ranking = core.search.rankings(64, **asked, **filters, kinds=[part], stream=7)[0]
            scores = {(page.block, page.page): score for page, score in zip(ranking.pages, ranking.scores, strict=True)}
            best = [max(scores.get((page[0], page[1]), 0.0) for page in group["pages"]) for group in old]
            np.testing.assert_allclose(best, [group["score"] for group in old], rtol=1e-5)
            assert best[0] == ranking.scores[0]
        assert bool(now[kinds]) == bool(old)
    messages = core.index.take_messages()
    assert all("an earlier release saved it" in message and "embedding" not in message for message in messages)
    assert bool(messages) == bool(rebuilt)


def test_read_as_it_is_then_migrated(folder: Path, name: str) -> None:
    text = (folder / "manifest.json").read_text()
    with everlong.Memory.open(folder, read_only=True) as memory:
        expect_same(memory.core, name, rebuilt=name != "text")
    assert (folder / "manifest.json").read_text() == text
    assert json.loads(text)["format_version"] == 1
    for rebuilt in (True, False):
        with everlong.Memory.open(folder) as memory:
            expect_same(memory.core, name, rebuilt=rebuilt and name != "text")
            assert memory.verify().damage == ()
            assert json.loads((folder / "manifest.json").read_text())["format_version"] == _core.FORMAT_VERSION == 3


def test_what_it_exported_is_imported(name: str, tmp_path: Path) -> None:
    file = tmp_path / "exported"
    file.write_bytes(gzip.decompress((DATA / f"{name}.export.gz").read_bytes()))
    core = _core.Memory.import_file(str(file), None)
    expect_same(core, name)
    core.close()


def test_tensors_of_its_kinds_are_called_after_them(tmp_path: Path) -> None:
    with tarfile.open(DATA / "kv.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    for read_only in (True, False):
        with everlong.Memory.open(tmp_path / "kv", read_only=read_only) as memory:
            tensors = memory.core.blocks.tensors(1)
            assert list(tensors) == ["detail/layer.0", "detail/layer.1", "detail/none", "text/ids"]
            np.testing.assert_array_equal(tensors["text/ids"], np.arange(100, 118, dtype=np.int32))
            np.testing.assert_array_equal(
                tensors["detail/layer.1"], np.arange(30.5, 36, dtype=np.float32).reshape(2, 3)
            )
            assert (tensors["detail/none"].dtype, tensors["detail/none"].shape) == (np.uint16, (0, 4))
            assert memory.core.blocks.tensors(2) == {}
