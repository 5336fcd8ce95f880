"""A memory that is coded anew answers from its new bytes, gives the old ones back, and says before what it takes."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import everlong._core as _core
from everlong import Memory, MemoryModel, ops
from everlong.cli.app import app
from everlong.errors import CapacityError, ReadOnlyMemoryError
from support import byte_tokenizer, random_text, tiny_model
from support.kept_tokens import KEPT_TOKENS
from support.native import DIM, KV_HEADS, LAYERS, PAGE, Written, fill, manifest


def run(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


def decoded(memory: _core.Memory, block: int, written: Written) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the block's k, v [L, Hkv, T, D], as the memory has them."""
    codec = memory.blocks.codec(block)
    pages = [page for page in memory.blocks.pages() if page.block == block]
    payload = np.zeros(sum(memory.page_bytes(page.end - page.begin, codec) for page in pages), np.uint8)
    memory.blocks.read_pages(pages, payload, codec)
    tokens = written.end - written.begin
    return ops.decode_kv(torch.from_numpy(payload), LAYERS, KV_HEADS, tokens, DIM, PAGE, codec, torch.float32)


def test_tags_that_a_caller_sets_leave_how_a_block_is_coded(tmp_path: Path) -> None:
    memory = _core.Memory.create(str(tmp_path / "m"), manifest())
    blocks = fill(memory, 2, 7)
    memory.upkeep.recode(1, "int8")
    before = decoded(memory, 1, blocks[0])
    memory.blocks.set_tags(1, ["mine"])
    memory.blocks.set_tags(2, ["mine", "everlong:codec=int8"])
    with pytest.raises(ValueError, match="everlong:codec=int8"):
        memory.blocks.add_tags(2, ["everlong:codec=int8"])
    memory.close()
    memory = _core.Memory.open(str(tmp_path / "m"), False, None)
    assert [memory.blocks.codec(block) for block in (1, 2)] == ["int8", "fp32"]
    assert [memory.blocks.info(block).tags for block in (1, 2)] == [["mine", "everlong:codec=int8"], ["mine"]]
    for now, then in zip(decoded(memory, 1, blocks[0]), before, strict=True):
        assert torch.equal(now, then)
    assert torch.equal(decoded(memory, 2, blocks[1])[0], torch.from_numpy(blocks[1].keys))
    memory.close()


@given(codecs=st.lists(st.sampled_from(ops.CODECS), min_size=1, max_size=4))
def test_a_block_is_what_its_codecs_make_of_it_one_after_the_other(codecs: list[str]) -> None:
    memory = _core.Memory.create(None, manifest())
    blocks = fill(memory, 3, 7)
    k, v = (torch.from_numpy(x) for x in (blocks[1].keys, blocks[1].values))
    for before, codec in itertools.pairwise(["fp32", *codecs]):
        assert (memory.upkeep.recode(2, codec) > 0) == (codec != before)
        if codec == before:
            continue
        payload = ops.encode_kv(k, v, PAGE, codec)
        k, v = ops.decode_kv(payload, LAYERS, KV_HEADS, k.shape[2], DIM, PAGE, codec, torch.float32)
    for of_memory, of_ops in zip(decoded(memory, 2, blocks[1]), (k, v), strict=True):
        assert torch.equal(of_memory, of_ops)
    assert memory.blocks.info(2).payload_bytes == ops.payload_bytes(7, PAGE, LAYERS, KV_HEADS, DIM, codecs[-1])
    for block in (1, 3):
        assert torch.equal(decoded(memory, block, blocks[block - 1])[0], torch.from_numpy(blocks[block - 1].keys))
    memory.close()


@pytest.mark.parametrize("in_folder", [True, False])
def test_a_memory_answers_after_it_was_coded_anew(in_folder: bool, tmp_path: Path) -> None:
    config = KEPT_TOKENS.changed(search={"index": ("heads", "lexical"), "heads_keys": "int8"})
    text = random_text(3000)
    with MemoryModel(tiny_model(), byte_tokenizer(), tmp_path / "m" if in_folder else None, config=config) as mm:
        mm.read(text)

        def found() -> list[object]:
            return [(recall.span, recall.text) for recall in mm.recall(text[900:930])]

        said, before = found(), mm.memory.stats()
        assert said
        for codec in ("int8", "int4"):
            work = mm.memory.recoding(codec)
            assert len(work.blocks) == before.blocks
            told: list[int] = []
            freed = mm.memory.compact(codec, progress=told.append)
            assert sum(told) == work.old_bytes
            assert freed == work.old_bytes - work.new_bytes
            assert mm.memory.stats().payload_bytes == work.new_bytes
            assert mm.memory.recoding(codec).blocks == ()
            assert found() == said
            assert mm.memory.verify().damage == ()
        mm.read(random_text(600, seed=5))  # in the memory's own codec, beside the others
        assert {mm.memory.core.blocks.codec(block.id) for block in mm.memory.blocks()} == {"int4", "fp32"}
        assert mm.generate("what?", max_new_tokens=2) is not None
        assert not any("codec" in tag for block in mm.memory.blocks() for tag in block.tags)


def test_what_does_not_fit_is_refused_before_anything_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "m"
    core = _core.Memory.create(str(folder), manifest())
    fill(core)
    core.close()
    with Memory.open(folder) as memory:
        with pytest.raises(ValueError, match='codec is "int7"; expected one of'):
            memory.compact("int7")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
        with pytest.raises(CapacityError, match=r"as int8 needs .* of disk meanwhile"):
            memory.compact("int8")
        assert all(memory.core.blocks.codec(block.id) == "fp32" for block in memory.blocks())
        assert memory.compact() == 0
    with Memory.open(folder, read_only=True) as memory:
        assert len(memory.recoding("int8").blocks) == 8
        with pytest.raises(ReadOnlyMemoryError):
            memory.core.upkeep.recode(1, "int8")
    text_alone = _core.Memory.create(str(tmp_path / "text"), manifest(layers=0, kv_heads=0, head_dim=0))
    text_alone.close()
    with Memory.open(tmp_path / "text") as memory, pytest.raises(ValueError, match="text alone"):
        memory.compact("int8")


@pytest.mark.parametrize("stopped_behind", [0, 1, 5])
def test_what_was_stopped_goes_on(stopped_behind: int, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    core = _core.Memory.create(str(folder), manifest())
    written = fill(core)
    core.close()
    done: list[int] = []

    def stop(old: int) -> None:
        done.append(old)
        if len(done) > stopped_behind:
            raise KeyboardInterrupt

    with Memory.open(folder) as memory, pytest.raises(KeyboardInterrupt):
        memory.compact("int6", progress=stop)
    with Memory.open(folder) as memory:
        assert len(memory.recoding("int6").blocks) == 8 - stopped_behind - 1
        memory.core.blocks.forget([8])
        memory.compact("int6")
        assert memory.recoding("int6").blocks == ()
        k, v = (torch.from_numpy(x) for x in (written[2].keys, written[2].values))
        payload = ops.encode_kv(k, v, PAGE, "int6")
        once = ops.decode_kv(payload, LAYERS, KV_HEADS, k.shape[2], DIM, PAGE, "int6", torch.float32)
        assert torch.equal(decoded(memory.core, 3, written[2])[0], once[0])
        assert memory.stats().dead_bytes <= 4096  # of a file with holes


def test_the_command_says_what_it_takes_and_does_it(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    core = _core.Memory.create(str(folder), manifest())
    fill(core)
    core.close()
    said = run("compact", folder, "--codec", "int8", "--dry-run")
    assert "8 blocks are to be coded as int8" in said
    report = json.loads(run("compact", folder, "--codec", "int8", "--json"))
    assert report["freed_bytes"] == report["recoding"]["old_bytes"] - report["recoding"]["new_bytes"]
    with Memory.open(folder, read_only=True) as memory:
        assert all(memory.core.blocks.codec(block.id) == "int8" for block in memory.blocks())
    assert "0.0 MB given back" in run("compact", folder)
