"""The command line over files of many kinds, and over folders that change."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everlong.cli import sync as cli_sync
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
