"""What is made of a model file is made once, and what is not whole is made anew."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from everlong.cli.app import app
from everlong.models import conversion_cache
from everlong.models.conversion_cache import clear, entries, entry_of, models_folder
from support.examples import examples

MADE = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 8}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERLONG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(name="file")
def a_file(tmp_path: Path) -> Path:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"some weights")
    return file


def made(file: Path, kind: str = "float32", *, size: int = 2050) -> list[str]:
    """Ask for the entry of a file. Return whether it was made for that, as a list with or without a word."""
    calls: list[str] = []

    def write(folder: Path) -> None:
        calls.append("made")
        for name, content in MADE.items():
            (folder / name).write_bytes(content)

    with entry_of(file, kind, lambda: size, write) as folder:
        assert folder is not None
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "entry.json"} == MADE
    return calls


def test_it_is_made_once_and_known_by_the_files_content(file: Path, tmp_path: Path) -> None:
    assert made(file) == ["made"]
    assert made(file) == []
    other = tmp_path / "the same.gguf"
    other.write_bytes(file.read_bytes())
    assert made(other) == []
    assert made(file, "bfloat16") == ["made"]
    file.write_bytes(b"other weights")
    assert made(file) == ["made"]
    assert [entry.kind for entry in entries()] == ["float32", "bfloat16", "float32"]


def test_a_file_that_was_hashed_is_not_hashed_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(file)
    monkeypatch.setattr(conversion_cache, "_sha256", lambda path: pytest.fail(f"{path} was hashed"))
    assert made(file) == []


def entry() -> Path:
    (folder,) = (path for path in models_folder().iterdir() if path.is_dir())
    return folder


def renamed(folder: Path) -> None:
    """It stands where another entry belongs."""
    other = folder.with_name(folder.name.replace("float32", "bfloat16"))
    folder.rename(other)
    shutil.copytree(other, folder)
    shutil.rmtree(other)
    seal = json.loads((folder / "entry.json").read_text())
    (folder / "entry.json").write_text(json.dumps(seal | {"name": other.name}))


def in_place_of(path: Path, make: Callable[[Path], object]) -> None:
    """Another thing stands there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    make(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "shorter": lambda folder: os.truncate(folder / "model.safetensors", 100),
    "empty": lambda folder: os.truncate(folder / "config.json", 0),
    "missing": lambda folder: (folder / "config.json").unlink(),
    "added": lambda folder: (folder / "generation_config.json").write_text("{}"),
    "no seal": lambda folder: (folder / "entry.json").unlink(),
    "a seal of nothing": lambda folder: (folder / "entry.json").write_text("null"),
    "a torn seal": lambda folder: (folder / "entry.json").write_text('{"name": "'),
    "a binary seal": lambda folder: (folder / "entry.json").write_bytes(b"\xff\xfe\x00"),
    "a seal too deep": lambda folder: (folder / "entry.json").write_text("[" * 10**6),
    "a seal of no files": lambda folder: (folder / "entry.json").write_text('{"read_from": [], "files": 3}'),
    "a file": lambda folder: in_place_of(folder, Path.touch),
    "a link to nowhere": lambda folder: in_place_of(folder, lambda path: path.symlink_to("nowhere")),
    "of another": renamed,
    "a folder for a file": lambda folder: in_place_of(folder / "config.json", Path.mkdir),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_or_foreign_is_made_anew(file: Path, damage: str) -> None:
    made(file)
    DAMAGES[damage](entry())
    assert made(file) == ["made"]
    assert made(file) == []


@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(MADE)), at=st.integers(0, 10**6), by=st.integers(1, 255), keep_time=st.booleans())
def test_any_changed_byte_is_noticed(file: Path, name: str, at: int, by: int, keep_time: bool) -> None:
    made(file)
    path = entry() / name
    before, content = path.stat(), bytearray(path.read_bytes())
    content[at % len(content)] ^= by
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert made(file) == ["made"]


def test_a_copied_cache_serves(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(file)
    shutil.copytree(tmp_path / "cache", tmp_path / "copy")
    monkeypatch.setenv("EVERLONG_CACHE", str(tmp_path / "copy"))
    assert made(file) == []
    monkeypatch.setattr(conversion_cache, "_sha256", lambda path: pytest.fail(f"{path} was hashed"))
    assert made(file) == []


def test_what_fails_leaves_nothing(file: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), entry_of(file, "float32", lambda: 1, write):
        pytest.fail("it was not made")
    assert entries() == []
    assert made(file) == ["made"]


KILLED = """
import os, pathlib, signal, sys
from everlong.models.conversion_cache import entry_of
def write(folder):
    (folder / "model.safetensors").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
with entry_of(pathlib.Path(sys.argv[1]), "float32", lambda: 1, write):
    pass
"""


@pytest.mark.slow
def test_what_a_killed_process_leaves_is_listed_and_goes(file: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, file], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = entries()
    assert (left.used, left.bytes) == (0, 4)
    assert made(file) == ["made"]
    (whole,) = entries()
    assert whole.used > 0
    assert not list(models_folder().glob(".*"))


def test_two_at_once_make_it_once(file: Path) -> None:
    began, calls = threading.Event(), []

    def write(folder: Path) -> None:
        began.set()
        calls.append(folder)
        threading.Event().wait(0.2)  # time for the other one to come; too short a time proves less, and fails nothing
        (folder / "model.safetensors").write_bytes(b"whole")

    def ask() -> bytes:
        with entry_of(file, "float32", lambda: 1, write) as folder:
            assert folder is not None
            return (folder / "model.safetensors").read_bytes()

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        first = threads.submit(ask)
        assert began.wait(60)
        others = [threads.submit(ask) for _ in range(3)]
        assert {asked.result() for asked in (first, *others)} == {b"whole"}
    assert len(calls) == 1


def files_of(folder: Path, count: int) -> list[Path]:
    files = [folder / f"{number}.gguf" for number in range(count)]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number]) * 9)
    return files


def test_what_was_used_least_recently_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = files_of(tmp_path, 3)
    assert made(first) == made(second) == ["made"]
    for ago, file in ((100, second), (200, first)):
        (at,) = (models_folder() / one.name for one in entries() if one.source == str(file))
        seal = (at / "entry.json").stat()
        os.utime(at / "entry.json", (seal.st_atime - ago, seal.st_mtime - ago))
    assert made(first) == []  # it counts as used now
    size = max(one.bytes for one in entries())
    monkeypatch.setenv("EVERLONG_CACHE_GB", str(2.5 * size / 1e9))
    assert made(third, size=size) == ["made"]
    assert {one.source for one in entries()} == {str(first), str(third)}


def test_what_is_in_use_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = files_of(tmp_path, 2)
    made(first)
    with entry_of(first, "float32", lambda: 1, lambda _: pytest.fail("it is there")) as folder:
        assert folder is not None
        monkeypatch.setenv("EVERLONG_CACHE_GB", "0.000003")  # room for one
        made(second)
        assert len(entries()) == 2
        assert [one.source for one in clear()] == [str(second)]
        assert (folder / "model.safetensors").read_bytes() == MADE["model.safetensors"]
    assert [one.source for one in clear()] == [str(first)]
    assert entries() == []


def test_what_is_larger_than_the_limit_is_not_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLONG_CACHE_GB", "0.000001")
    with entry_of(file, "float32", lambda: 1001, lambda _: pytest.fail("there is no room")) as folder:
        assert folder is None
    assert entries() == []


@pytest.mark.parametrize("given", ["much", "-1", "nan", "inf", "5 GB"])
def test_a_limit_that_is_none_is_said(file: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("EVERLONG_CACHE_GB", given)
    with pytest.raises(ValueError, match=f"EVERLONG_CACHE_GB is '{given}': expected"), contextlib.ExitStack() as asked:
        asked.enter_context(entry_of(file, "float32", lambda: 1, lambda _: None))


def test_a_cache_that_cannot_be_written_keeps_nothing(file: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with entry_of(file, "float32", lambda: 1, lambda _: pytest.fail("nothing can be kept")) as folder:
        assert folder is None


def test_a_full_disk_keeps_nothing(file: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with entry_of(file, "float32", lambda: 1, write) as folder:
        assert folder is None
    assert entries() == []
    with entry_of(file, "float32", lambda: 10**18, lambda _: pytest.fail("there is no room")) as folder:
        assert folder is None


def run(*command: str) -> Any:
    done = CliRunner().invoke(app, ["cache", *command, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_command_lists_and_clears(file: Path, cache: Path) -> None:
    assert run("list") == {"folder": str(cache / "models"), "limit_bytes": 20_000_000_000, "models": []}
    made(file)
    (row,) = run("list")["models"]
    assert (row["source"], row["dtype"]) == (str(file), "float32")
    assert row["bytes"] == sum(path.stat().st_size for path in entry().iterdir())
    (cache / "packs").mkdir()
    (cache / "profiles").mkdir()
    assert run("clear")["bytes"] == row["bytes"]
    assert run("list")["models"] == []
    assert run("clear") == {"removed": [], "bytes": 0, "in_use": 0}
    assert (cache / "packs").is_dir()
    assert (cache / "profiles").is_dir()
    assert "0 of 0.00 GB" in CliRunner().invoke(app, ["cache", "list"]).output


def test_a_file_that_is_replaced_while_its_entry_is_made_is_not_taken_for_the_old_one(file: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "weights").write_bytes(b"of the first file")
        file.with_name("other").write_bytes(b"other weights")
        os.replace(file.with_name("other"), file)

    with entry_of(file, "float32", lambda: 1, write):
        pass
    assert made(file) == ["made"], "the file that is there now has an entry of its own"
