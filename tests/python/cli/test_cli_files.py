"""The command line over files of many kinds, and over folders that change."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from everlong.cli import sync as cli_sync
from everlong.errors import MostFilesGoneError
from everlong.generation.sync import SyncReport
from support.processes import everlong_command as everlong


@pytest.mark.slow
def test_read_passes_over_what_has_no_text(saved_model: Path, tmp_path: Path) -> None:
    """Also where it comes last; then nothing is said to be unfinished."""
    folder, memory = tmp_path / "papers", tmp_path / "memory"
    folder.mkdir()
    (folder / "a.html").write_text("<h1>Rivers</h1><p>The key is Zq7#Kx9.")
    (folder / "b.png").write_bytes(b"\x89PNG\r\n\0")
    (tmp_path / "note.txt").write_text("a plain note")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 and no more")
    given = (folder, tmp_path / "note.txt", tmp_path / "broken.pdf")
    done = everlong("read", *given, "--memory", memory, "--model", saved_model)
    assert done.returncode == 0, done.stderr
    assert "2 of 4 files read" in done.stdout
    assert "2 passed over" in done.stdout
    assert f"{folder / 'b.png'} holds no text: it is a picture" in done.stderr
    assert f"{tmp_path / 'broken.pdf'} is no whole PDF" in done.stderr
    listed = json.loads(everlong("inspect", memory, "--json").stdout)
    assert [source["name"] for source in listed["sources"]] == ["a.html", "note"]
    assert listed["unfinished"] == []
    asked = everlong("ask", "Zq7#Kx9", "--memory", memory, "--max-new-tokens", "1", "--json")
    assert {recall["place"] for recall in json.loads(asked.stdout)["recalled"]} <= {"Rivers", ""}
    alone = everlong("read", folder / "b.png", "--memory", tmp_path / "none", "--model", saved_model)
    assert alone.returncode == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_sync_says_what_it_would_do_and_does_it(saved_model: Path, tmp_path: Path) -> None:
    folder, memory = tmp_path / "notes", tmp_path / "memory"
    folder.mkdir()
    (folder / "a.txt").write_text("text of a")
    (folder / "b.txt").write_text("text of b")
    (folder / "c.png").write_bytes(b"\x89PNG\r\n\0")
    dry = everlong("sync", folder, "--memory", memory, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "3 new, 0 changed, 0 moved, 0 gone" in dry.stdout
    assert not memory.exists()
    done = everlong("sync", folder, "--memory", memory, "--model", saved_model, "--exclude", "b.*", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["new"], list(report["unreadable"]), report["tokens"]) == (["a.txt"], ["c.png"], 9)
    (folder / "a.txt").rename(folder / "moved.txt")
    done = everlong("sync", folder, "--memory", memory)
    assert "new: b.txt\nmoved: a.txt -> moved.txt\n1 new, 0 changed, 1 moved, 0 gone, 0 kept" in done.stdout, (
        done.stderr
    )
    dry = everlong("sync", folder, "--memory", memory, "--dry-run")
    assert "0 new, 0 changed, 0 moved, 0 gone, 2 kept, 1 passed over: nothing was done" in dry.stdout
    assert everlong("sync", tmp_path / "no folder", "--memory", memory).returncode == 2


@pytest.mark.slow
def test_sync_of_an_empty_folder_forgets_only_when_told(saved_model: Path, tmp_path: Path) -> None:
    """And of one that is missing. No terminal is there to be asked."""
    folder, memory = tmp_path / "notes", tmp_path / "memory"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text(f"text of {name}")
    assert everlong("sync", folder, "--memory", memory, "--model", saved_model).returncode == 0

    def held() -> int:
        return len(json.loads(everlong("inspect", memory, "--json").stdout)["sources"])

    folder.rename(tmp_path / "away")
    missing = everlong("sync", folder, "--memory", memory)
    folder.mkdir()
    empty = everlong("sync", folder, "--memory", memory, typed="y\n")
    assert (missing.returncode, empty.returncode, held()) == (2, 1, 3)
    assert "3 of 3 files" in empty.stderr
    assert "--forget-all" in empty.stderr
    dry = everlong("sync", folder, "--memory", memory, "--dry-run")
    assert dry.returncode == 0
    assert "without --forget-all, nothing would be done" in dry.stderr
    assert json.loads(everlong("sync", folder, "--memory", memory, "--dry-run", "--json").stdout)["most_gone"]
    folder.rmdir()
    told = everlong("sync", folder, "--memory", memory, "--forget-all")
    assert (told.returncode, held()) == (0, 0), told.stderr
    assert "3 gone" in told.stdout


@pytest.mark.parametrize(("answer", "expected"), [(None, MostFilesGoneError), ("n", typer.Abort), ("y", None)])
def test_a_terminal_is_asked_before_most_is_forgotten(
    answer: str | None, expected: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    done = SyncReport((), (), (), ("a.txt",), 0, {}, {})

    def sync(folder: Path, *, forget_all: bool) -> SyncReport:
        told.append(forget_all)
        if not forget_all:
            raise MostFilesGoneError("3 of 3 files are gone")
        return done

    def confirm(question: str, *, abort: bool, err: bool) -> None:
        assert answer is not None
        assert abort
        if answer == "n":
            raise typer.Abort

    monkeypatch.setattr(typer, "confirm", confirm)
    mm: Any = SimpleNamespace(sync=sync)
    if expected is None:
        assert cli_sync._synced(mm, Path("notes"), {}, forget_all=False, ask=True) is done
    else:
        with pytest.raises(expected):
            cli_sync._synced(mm, Path("notes"), {}, forget_all=False, ask=answer is not None)
    assert told == ([False] if expected else [False, True])


def test_watch_waits_while_most_files_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither does it end, nor ask, nor forget."""
    given: list[dict[str, Any]] = []

    def sync(folder: Path, **how: Any) -> SyncReport:
        given.append(how)
        if len(given) == 1:
            raise MostFilesGoneError("3 of 3 files are gone")
        return SyncReport((), (), (), (), 3, {}, {})

    monkeypatch.setattr("watchfiles.watch", lambda *folder, **how: iter([set(), set()]))
    mm: Any = SimpleNamespace(sync=sync)
    cli_sync._watch(mm, tmp_path, tmp_path / "memory", {"tags": ()}, as_json=False)
    said = capsys.readouterr()
    assert given == [{"tags": ()}] * 2
    assert "3 of 3 files are gone" in said.err
    assert "3 kept" in said.out


def test_watch_syncs_after_a_change_but_not_after_the_memorys_own(tmp_path: Path) -> None:
    folder, memory = tmp_path / "notes", tmp_path / "notes" / "memory"
    memory.mkdir(parents=True)
    synced, done = [], threading.Event()

    def sync(given: Path, **how: Any) -> SyncReport:
        synced.append((folder / "new.txt").exists())
        raise KeyboardInterrupt

    def change() -> None:
        number = 0
        while not done.wait(0.2):
            number += 1
            (memory / "row").write_text(str(number))
            if number > 5:
                (folder / "new.txt").write_text(str(number))

    changing = threading.Thread(target=change)
    changing.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            cli_sync._watch(SimpleNamespace(sync=sync), folder, memory, {}, as_json=True)  # type: ignore[arg-type]
    finally:
        done.set()
        changing.join()
    assert synced == [True]
