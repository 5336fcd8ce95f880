"""`everlong list` and `everlong forget`: what they show, what they let go of, and what they leave."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner, Result

import everlong
from everlong.cli.app import app
from everlong.memory import Memory
from support import TINY_MEMORY, byte_tokenizer, random_text, tiny_model


@pytest.fixture(name="folder")
def memory_of_three_sources(tmp_path: Path) -> Path:
    folder = tmp_path / "notes.everlong"
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, TINY_MEMORY) as mm:
        for seed, (source, tag) in enumerate((("diary", "private"), ("letters", "private"), ("atlas", "public"))):
            mm.read(random_text(300, seed), source=source, tags=(tag,))
    return folder


def run(*arguments: object, answer: str = "") -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], input=answer)


def names(folder: Path, *options: str) -> list[str]:
    found = run("list", folder, "--json", *options)
    assert found.exit_code == 0, found.output
    return [source["name"] for source in json.loads(found.stdout)["sources"]]


def files_with(folder: Path, words: bytes) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and words in file.read_bytes()]


def test_a_list_is_of_what_the_options_choose(folder: Path) -> None:
    assert names(folder) == ["diary", "letters", "atlas"]
    assert names(folder, "--tag", "private") == ["diary", "letters"]
    assert names(folder, "--source", "atlas", "--source", "diary") == ["diary", "atlas"]
    assert names(folder, "--before", "2001-01-01") == []
    with Memory.open(folder, read_only=True) as memory:
        expected = [block.id for block in memory.blocks("letters")]
    found = json.loads(run("list", folder, "--source", "letters", "--blocks", "--json").stdout)
    assert [block["id"] for block in found["blocks"]] == expected
    shown = run("list", folder, "--source", "letters", "--blocks")
    assert "letters" in shown.stdout
    assert "diary" not in shown.stdout
    assert f"block {expected[0]}: " in shown.stdout


def test_a_dry_run_and_a_no_forget_nothing(folder: Path) -> None:
    shown = run("forget", folder, "--tag", "private", "--dry-run")
    assert shown.exit_code == 0
    assert "diary" in shown.stdout
    assert "atlas" not in shown.stdout
    refused = run("forget", folder, "--tag", "private", answer="n\n")
    assert refused.exit_code == 1
    assert "diary" in refused.stdout, "it shows what it takes before it asks"
    assert json.loads(run("forget", folder, "--source", "diary", "--dry-run", "--json").stdout)["forgotten_blocks"] == 0
    assert names(folder) == ["diary", "letters", "atlas"]


def test_what_is_forgotten_is_gone_from_the_folder(folder: Path) -> None:
    assert files_with(folder, b"diary")
    done = run("forget", folder, "--source", "diary", answer="y\n")
    assert done.exit_code == 0, done.output
    assert "blocks forgotten" in done.stdout
    assert names(folder) == ["letters", "atlas"]
    assert not files_with(folder, b"diary")
    told = json.loads(run("forget", folder, "--tag", "public", "--yes", "--json").stdout)
    assert told["forgotten_blocks"] > 0
    assert [source["name"] for source in told["sources"]] == ["atlas"]
    assert names(folder) == ["letters"]
    nothing = run("forget", folder, "--source", "nobody", "--yes")
    assert nothing.exit_code == 0
    assert "0 blocks" in nothing.stdout


def test_what_came_after_the_list_was_shown_stays(folder: Path) -> None:
    """Another process may read a text between the question and the answer."""

    def meanwhile(*_: object, **__: object) -> bool:
        with everlong.MemoryModel(tiny_model(), byte_tokenizer(), folder, TINY_MEMORY) as mm:
            mm.read(random_text(300, 9), source="diary")
            mm.memory.forget([mm.memory.blocks("diary")[0].id])
        return True

    with mock.patch("typer.confirm", meanwhile):
        assert run("forget", folder, "--source", "diary").exit_code == 0
    with Memory.open(folder, read_only=True) as memory:
        assert memory.blocks("diary"), "what was not shown"


def test_it_must_be_said_what_to_forget(folder: Path) -> None:
    for options in ((), ("--yes",)):
        refused = run("forget", folder, *options)
        assert refused.exit_code == 2
        assert "--source" in refused.output
    assert names(folder) == ["diary", "letters", "atlas"]
    assert run("list", folder / "nothing").exit_code != 0
