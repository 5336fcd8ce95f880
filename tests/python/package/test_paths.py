"""A path leads to the same place wherever it is given: ~, relative ones, bytes that are no UTF-8."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everlong
from everlong.models.pack import Pack, load_pack
from everlong.models.profiles import cache_folder, store_measurement, stored_measurement
from everlong.paths import absolute
from everlong.retrieval.index import FlatIndex
from support import byte_tokenizer, open_model, random_text, tiny_model
from support.native import fill, manifest
from support.processes import everlong_command
from support.settings import SMALL

TEXT = random_text(300)


class OwnPath(os.PathLike[str]):
    """A path of neither str nor pathlib."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return self._path


class BytesPath(os.PathLike[bytes]):
    def __fspath__(self) -> bytes:
        return b"~/n\xffme"


# Ways to say the place "n\xffme" in the home folder, which is the current one. The name is no UTF-8.
NAME = os.fsdecode(b"n\xffme")
WAYS: dict[str, Callable[[Path], Any]] = {
    "absolute": lambda home: str(home / NAME),
    "pathlib": lambda home: home / NAME,
    "of the home": lambda home: f"~/{NAME}",
    "pathlib of the home": lambda home: Path("~") / NAME,
    "relative": lambda home: NAME,
    "relative with dots": lambda home: f"./sub/../{NAME}",
    "os.PathLike": lambda home: OwnPath(f"~/{NAME}"),
    "os.PathLike of bytes": lambda home: BytesPath(),
    "bytes": lambda home: os.fsencode(home / NAME),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sub").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=WAYS)
def said(request: pytest.FixtureRequest, home: Path) -> Any:
    return WAYS[request.param](home)


def nothing_else(home: Path) -> bool:
    """Whether nothing was made beside the place that was meant, such as a folder "~"."""
    return {os.fsdecode(name) for name in os.listdir(home)} <= {NAME, "sub"}


def test_a_memory_is_where_it_was_said_and_stays_when_the_current_folder_changes(home: Path, said: Any) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), said, SMALL) as mm:
        os.chdir("sub")
        mm.read(TEXT, source="book")
        assert mm.memory.path == os.fspath(home / NAME) or ".." in mm.memory.path
        mm.memory.verify()
    os.chdir(home)
    assert nothing_else(home)
    assert everlong.Memory.exists(said)
    with everlong.Memory.open(said) as memory:
        assert {block.source for block in memory.blocks()} == {"book"}


def test_exports_imports_forks_and_repairs_take_the_same(home: Path, said: Any) -> None:
    with everlong.Memory.open(home / "sub" / "m", create=manifest()) as memory:
        fill(memory.core)
        memory.export(said)
    with everlong.Memory.import_file(said, home / "sub" / "imported") as imported:
        assert len(imported.blocks()) == 8
    (home / NAME).unlink()
    with everlong.Memory.open(home / "sub" / "m") as memory, memory.fork(said) as fork:
        assert len(fork.blocks()) == 8
    assert everlong.Memory.repair(said).damage == ()
    assert nothing_else(home)


def test_a_text_file_is_read_from_there(home: Path, said: Any) -> None:
    (home / NAME).write_text(TEXT)
    if isinstance(said, str | bytes):
        said = Path(os.fsdecode(said))  # a str is a text
    with open_model() as mm:
        assert mm.read(said).tokens == len(TEXT)
        (block, *_) = mm.memory.blocks()
        assert block.origin.endswith("n\\udcffme")
        assert mm.memory.blocks(where=everlong.Where(source="n?me")) == mm.memory.blocks()


def test_packs_and_indexes_take_the_same(home: Path, said: Any) -> None:
    Pack("weights", "name", {}).save(said)
    assert load_pack(said).model == "weights"
    for file in (home / NAME).iterdir():
        file.unlink()
    (home / NAME).rmdir()
    FlatIndex(3).save(said)
    assert len(FlatIndex.load(said)) == 0
    assert nothing_else(home)


@pytest.mark.parametrize("way", ["absolute", "of the home", "relative"])
def test_the_cache_is_where_the_variable_says(home: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLONG_CACHE", WAYS[way](home))
    assert cache_folder() == home / NAME
    os.chdir("sub")
    store_measurement("dtype-x", "{}")
    assert stored_measurement("dtype-x") == "{}"
    os.chdir(home)
    assert nothing_else(home)
    assert (home / NAME / "profiles" / "dtype-x.json").exists()


def test_the_users_own_cache_takes_a_home_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVERLONG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "~/cache")
    assert cache_folder() == home / "cache" / "everlong"


@pytest.mark.parametrize("written", ["~/library", "--memory=~/library"])
def test_a_command_takes_what_a_shell_left(home: Path, written: str) -> None:
    """A shell expands no ~ within quotes, nor behind a "="."""
    with open_model(home / "library") as mm:
        mm.read(TEXT, source="book")
    if written.startswith("--"):
        asked = everlong_command("ask", written, "--questions", "~/questions.jsonl", "--json")
        assert asked.returncode == 2
        assert "/questions.jsonl'doesnotexist" in re.sub(r"[\s│]", "", asked.stderr)
    else:
        shown = everlong_command("inspect", written)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "book" in shown.stdout
    assert not (home / "~").exists()


@pytest.mark.parametrize("path", [None, 5, 1.5, ["a"], object], ids=repr)
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(TypeError, match=r"the path is .*: expected a str"):
        absolute(path)


@pytest.mark.parametrize(
    ("path", "told"),
    [("", "empty"), (" ", "empty"), (Path("~no such user/m"), "no such home"), (b"", "empty"), ("a\0b", "zero byte")],
)
def test_what_leads_nowhere_is_refused(home: Path, path: Any, told: str) -> None:
    for call in (everlong.Memory.open, everlong.Memory.exists, everlong.Memory.repair, load_pack):
        with pytest.raises(ValueError, match=told):
            call(path)
    assert nothing_else(home)


def test_a_name_that_begins_with_a_tilde_is_a_name_where_it_is_there(home: Path) -> None:
    (home / "~draft.txt").write_text(TEXT)
    with open_model() as mm:
        assert mm.read(Path("~draft.txt")).tokens == len(TEXT)
