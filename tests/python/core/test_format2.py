"""Memories of format 2 with FP8 codes (tests/data/format2): what was written without centres is read without them."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everlong
from everlong import _core, ops
from support import TESTS
from support.memory_answers import answers, turn_on

DATA = TESTS / "data" / "format2"


@pytest.fixture(params=["e4m3", "e5m2"])
def codec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(codec: str, tmp_path: Path) -> Path:
    with tarfile.open(DATA / f"{codec}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / codec


def expect_same(core: Any, codec: str) -> None:
    """Require its answers, and the bytes and the numbers of its payloads."""
    manifest = core.manifest()
    assert manifest.codec == f"{codec}-plain"
    turn_on(core)
    assert answers(core) == json.loads((DATA / f"{codec}.json").read_text())
    shape = manifest.layers, manifest.kv_heads
    with np.load(DATA / "decoded.npz") as recorded:
        for block in core.blocks.infos():
            pages = [page for page in core.blocks.pages() if page.block == block.id]
            payload = np.zeros(sum(core.page_bytes(page.end - page.begin) for page in pages), dtype=np.uint8)
            core.blocks.read_pages(pages, payload)
            name, tokens = f"{codec}.{block.id}", block.end - block.begin
            np.testing.assert_array_equal(payload, recorded[f"{name}.payload"])
            decoded = ops.decode_kv(torch.from_numpy(payload), *shape, tokens, 8, 8, manifest.codec, torch.float32)
            for got, which in zip(decoded, "kv", strict=True):
                np.testing.assert_array_equal(got.numpy().view(np.uint32), recorded[f"{name}.{which}"].view(np.uint32))


def append_more(core: Any) -> torch.Tensor:
    """Append a block as the memory's codec has it, and return its keys and values as they come back."""
    manifest = core.manifest()
    k = torch.randn(2, 2, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    payload = ops.encode_kv(*k, 8, manifest.codec)
    begin = core.blocks.stream_end(0)
    core.blocks.append(
        stream=0,
        begin=begin,
        end=begin + 8,
        sink_tokens=0,
        source="letters",
        created_at=1_700_000_010.0,
        tags=[],
        token_ids=np.arange(8, dtype=np.int32),
        payload=payload.numpy(),
    )
    return torch.stack(ops.decode_kv(payload, 2, 2, 8, 8, 8, manifest.codec, torch.float32))


def test_read_as_it_is_then_migrated(folder: Path, codec: str) -> None:
    text = (folder / "manifest.json").read_text()
    assert json.loads(text)["format_version"] == 2
    with everlong.Memory.open(folder, read_only=True) as memory:
        expect_same(memory.core, codec)
    assert (folder / "manifest.json").read_text() == text
    for _ in range(2):
        with everlong.Memory.open(folder) as memory:
            expect_same(memory.core, codec)
            assert memory.verify().damage == ()
        written = json.loads((folder / "manifest.json").read_text())
        assert (written["format_version"], written["geometry"]["codec"]) == (3, f"{codec}-plain")


def test_a_block_that_is_added_is_of_the_same_codec(folder: Path, codec: str) -> None:
    with everlong.Memory.open(folder) as memory:
        decoded = append_more(memory.core)
    with everlong.Memory.open(folder) as memory:
        core = memory.core
        page = next(page for page in core.blocks.pages() if page.block == 4)
        for layer in range(2):
            keys = core.blocks.read_keys(page, layer).reshape(2, 8, 8)
            np.testing.assert_array_equal(keys, decoded[0, layer].numpy())
        assert memory.verify().damage == ()


def test_what_it_exported_is_imported_forked_and_exported_again(codec: str, tmp_path: Path) -> None:
    file = tmp_path / "exported"
    file.write_bytes(gzip.decompress((DATA / f"{codec}.export.gz").read_bytes()))
    core = _core.Memory.import_file(str(file), str(tmp_path / "imported"))
    expect_same(core, codec)
    core.upkeep.export_file(str(tmp_path / "again"))
    core.upkeep.fork(str(tmp_path / "fork"))
    core.close()
    for made in (_core.Memory.import_file(str(tmp_path / "again"), None), _core.Memory.open(str(tmp_path / "fork"))):
        expect_same(made, codec)
        made.close()
