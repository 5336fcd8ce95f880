"""A memory made anew from its token ids: for another model, gone on with where it was cut short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from typer.testing import CliRunner

import everlong
from everlong.cli.app import app
from everlong.memory import Memory
from support import SMALL, byte_tokenizer, random_text, tiny_model

TEXT, MORE = random_text(1500), random_text(900, seed=2)


def open_model(folder: Path | None, seed: int, *, begins: bool = False) -> everlong.MemoryModel:
    model = tiny_model(seed=seed, vocab_size=258)
    return everlong.MemoryModel(model, byte_tokenizer(begins=begins), folder, config=SMALL)


def made(folder: Path, *, begins: bool = False) -> None:
    """A memory of two texts and a conversation."""
    with open_model(folder, 0, begins=begins) as mm:
        mm.read(TEXT, source="book", tags=["a", "b"], origin="here")
        mm.generate("what?", max_new_tokens=8)
        mm.read(MORE, source="other")


def held(memory: Memory) -> list[tuple[Any, ...]]:
    """Of every block what a rebuilding keeps; spans begin anew where something was forgotten."""
    blocks = sorted(memory.core.blocks.infos(), key=lambda block: block.begin)
    return [
        (
            block.source,
            tuple(block.tags),
            block.role,
            block.created_at,
            memory.core.blocks.token_ids(block.stream, block.begin, block.end).tolist(),
        )
        for block in blocks
    ]


def ids_of(memory: Memory) -> list[int]:
    return [token for block in held(memory) for token in block[-1]]


@pytest.mark.parametrize("begins", [False, True])
def test_another_model_gets_the_same_blocks(tmp_path: Path, begins: bool) -> None:
    made(tmp_path / "old", begins=begins)
    with open_model(tmp_path / "new", 1, begins=begins) as mm:
        seen: list[tuple[int, int | None]] = []
        report = mm.rebuild(tmp_path / "old", progress=lambda done, of: seen.append((done, of)))
        with Memory.open(tmp_path / "old", read_only=True) as old:
            assert held(mm.memory) == held(old)
            assert (report.tokens, report.resumed_tokens) == (old.stats().tokens, 0)
            assert report.blocks == old.stats().blocks
            assert [block.span for block in mm.memory.blocks()] == [block.span for block in old.blocks()]
        assert seen[-1] == (report.tokens, report.tokens)
        assert mm.read(TEXT, source="book", tags=["a", "b"], origin="here").already == len(TEXT)


def test_keys_and_values_are_those_of_the_new_model(tmp_path: Path) -> None:
    """As if that model had read the text itself."""
    with open_model(tmp_path / "old", 0) as mm:
        mm.read(TEXT, source="book")
    with open_model(tmp_path / "new", 1) as mm:
        mm.rebuild(tmp_path / "old")
        got = keys(mm)
        answer = mm.generate(TEXT[300:320], max_new_tokens=12, remember=False).text
    with open_model(tmp_path / "itself", 1) as mm:
        mm.read(TEXT, source="book")
        np.testing.assert_allclose(got, keys(mm), rtol=1e-4, atol=1e-5)
        assert answer == mm.generate(TEXT[300:320], max_new_tokens=12, remember=False).text
    with open_model(tmp_path / "first", 0) as mm:
        mm.read(TEXT, source="book")
        assert not np.allclose(got, keys(mm), rtol=1e-2, atol=1e-2)


def keys(mm: everlong.MemoryModel) -> np.ndarray[Any, Any]:
    """The keys of all pages and layers."""
    core = mm.memory.core
    layers = range(core.manifest().layers)
    return np.concatenate(
        [core.blocks.read_keys(page, layer).reshape(-1) for page in core.blocks.pages() for layer in layers]
    )


def test_what_was_forgotten_is_left_out(tmp_path: Path) -> None:
    made(tmp_path / "old")
    with Memory.open(tmp_path / "old") as old:
        old.forget([old.blocks("book")[2].id])
    with open_model(None, 1) as mm, Memory.open(tmp_path / "old", read_only=True) as old:
        mm.rebuild(old)
        assert held(mm.memory) == held(old)
        assert mm.stream_tokens == old.stats().tokens


def test_cut_short_it_goes_on(tmp_path: Path) -> None:
    made(tmp_path / "old")

    def stop(done: int, of: int | None) -> None:
        if done > 1000:
            raise KeyboardInterrupt

    with open_model(tmp_path / "new", 1) as mm, pytest.raises(KeyboardInterrupt):
        mm.rebuild(tmp_path / "old", progress=stop)
    with open_model(tmp_path / "new", 1) as mm, Memory.open(tmp_path / "old", read_only=True) as old:
        there = mm.stream_tokens
        assert 1000 < there < old.stats().tokens
        report = mm.rebuild(old)
        assert (report.resumed_tokens, report.tokens) == (there, old.stats().tokens - there)
        assert ids_of(mm.memory) == ids_of(old)
        assert mm.rebuild(old).tokens == 0


def test_another_memory_is_not_mixed_in(tmp_path: Path) -> None:
    made(tmp_path / "old")
    with open_model(None, 1) as mm:
        mm.read("something else", source="book")
        with pytest.raises(ValueError, match="something else than the beginning"):
            mm.rebuild(tmp_path / "old")
        assert mm.stream_tokens == len("something else")
    with open_model(tmp_path / "whole", 1) as mm:
        mm.rebuild(tmp_path / "old")
        mm.read("and more")
        with pytest.raises(ValueError, match="something else than the beginning"):
            mm.rebuild(tmp_path / "old")


def test_ids_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    made(tmp_path / "old")
    with open_model(None, 1, begins=True) as mm, pytest.raises(everlong.ModelMismatchError, match="tokenizer"):
        mm.rebuild(tmp_path / "old")


def test_by_command(tmp_path: Path) -> None:
    made(tmp_path / "old")
    for name, seed in (("first", 0), ("second", 1)):
        tiny_model(seed=seed).save_pretrained(tmp_path / name)
        tokenizer: transformers.PreTrainedTokenizerFast = byte_tokenizer()
        tokenizer.save_pretrained(tmp_path / name)
    names = ("tokens", "recalled_tokens", "rolling_tokens", "evict_tokens", "chunk_tokens")
    settings = [f"--set=frame.{name}={getattr(SMALL.frame, name)}" for name in names]
    settings.append(f"--set=archive.block_tokens={SMALL.archive.block_tokens}")
    command = ["rebuild", str(tmp_path / "old"), "-d", str(tmp_path / "new"), "-m", str(tmp_path / "second")]
    result = CliRunner().invoke(app, [*command, *settings, "--set=search.index=lexical"], catch_exceptions=False)
    assert result.exit_code == 0
    with Memory.open(tmp_path / "old", read_only=True) as old, Memory.open(tmp_path / "new", read_only=True) as new:
        assert ids_of(new) == ids_of(old)
        assert f"{old.stats().tokens:,} tokens" in result.stdout
