"""`everlong rebuild --index`: an older memory's index is completed, and nothing is read again."""

from __future__ import annotations

import json
import pathlib

import pytest
from typer.testing import CliRunner

import everlong
from everlong.cli.app import app
from support import TINY_MEMORY, byte_tokenizer, tiny_model
from support.parts.encoder import use_tiny_encoder
from support.texts import random_words


def test_an_index_is_completed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, _ = use_tiny_encoder(monkeypatch)
    model, tokenizer = tiny_model("llama"), byte_tokenizer()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    folder = tmp_path / "memory"
    with everlong.MemoryModel(model, tokenizer, folder, TINY_MEMORY) as mm:
        mm.read(random_words(1200))
        blocks = len(mm.memory.blocks())
    typed = ["rebuild", "--index", "--memory", str(folder), "--model", str(tmp_path / "model"), "--dtype", "float32"]
    done = CliRunner().invoke(app, [*typed, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"blocks": blocks, "vectors": {"encoder": blocks}}
    with everlong.Memory.open(folder, read_only=True) as memory:
        assert memory.stats().tokens == 1200
        assert all(f"encoder.{part.id}" in memory.core.blocks.tensor_shapes(block.id) for block in memory.blocks())
    said = CliRunner().invoke(app, typed)
    assert f"{blocks} of {blocks} blocks have vectors of encoder" in said.stdout.replace("\n", " ")


@pytest.mark.parametrize("typed", [["rebuild", "--memory", "m"], ["rebuild", "old", "--index", "--memory", "m"]])
def test_one_of_the_two_is_named(typed: list[str]) -> None:
    assert CliRunner().invoke(app, typed).exit_code == 2
