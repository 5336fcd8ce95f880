"""A folder that is empty, missing or not mounted makes a memory forget nothing, unless it is told to."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everlong
from everlong.files import parsing
from support import TINY_MEMORY, byte_tokenizer, random_text, tiny_model

MODEL = tiny_model()


def open_model(memory: Path | None = None) -> everlong.MemoryModel:
    return everlong.MemoryModel(MODEL, byte_tokenizer(), memory, TINY_MEMORY)


def fill(folder: Path, files: int) -> list[Path]:
    made = []
    for number in range(files):
        path = folder / f"d{number % 2}" / f"n{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(random_text(40, seed=number + 1))
        made.append(path)
    return made


def blocks(mm: everlong.MemoryModel) -> set[int]:
    return {block.id for block in mm.memory.blocks()}


def is_emptied(folder: Path) -> None:
    for one in folder.iterdir():
        shutil.rmtree(one)


def is_a_mount_point_with_a_note_of_its_own(folder: Path) -> None:
    is_emptied(folder)
    (folder / "README.txt").write_text("nothing is mounted here")


def loses_most(folder: Path) -> None:
    for path in sorted(folder.rglob("*.txt"))[:3]:
        path.unlink()


def has_files_without_a_byte(folder: Path) -> None:
    for path in folder.rglob("*.txt"):
        path.write_text("")


def is_another_folder(folder: Path) -> None:
    folder.rename(folder.with_name("before"))
    folder.mkdir()
    (folder / "other.txt").write_text("words of another folder")


def ignores_all(folder: Path) -> None:
    (folder / ".gitignore").write_text("*\n")


@pytest.mark.parametrize(
    "happens",
    [
        *(is_emptied, is_a_mount_point_with_a_note_of_its_own, loses_most, has_files_without_a_byte),
        *(is_another_folder, ignores_all),
    ],
)
def test_most_files_are_forgotten_only_when_told(happens: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    fill(folder, 5)
    with open_model(tmp_path / "memory") as mm:
        mm.sync(folder)
        before, kept = blocks(mm), mm.memory.core.file("synced.json")
        happens(folder)
        report = mm.sync(folder, dry_run=True)
        assert report.most_gone
        assert len(report.gone) + len(report.changed) >= 3
        for _ in range(2):
            with pytest.raises(everlong.MostFilesGoneError, match="of 5 files") as raised:
                mm.sync(folder)
            assert str(folder) in str(raised.value)
            assert "forget_all=True" in str(raised.value)
            assert (blocks(mm), mm.memory.core.file("synced.json")) == (before, kept)
    with open_model(tmp_path / "memory") as mm:
        assert not mm.sync(folder, dry_run=True, forget_all=True).forgotten
        assert blocks(mm) == before
        report = mm.sync(folder, forget_all=True)
        assert report.forgotten >= 3
        wanted = {str(path) for path in folder.rglob("*.txt") if path.stat().st_size > 0}
        assert {block.origin for block in mm.memory.blocks()} == (set() if happens is ignores_all else wanted)
        assert not mm.sync(folder).most_gone  # and the next sync is as any other


def test_files_that_come_back_were_never_gone(tmp_path: Path) -> None:
    """As of a disk that is mounted again, with other times and other numbers of files."""
    folder, away = tmp_path / "notes", tmp_path / "away"
    fill(folder, 4)
    with open_model() as mm:
        mm.sync(folder)
        before = blocks(mm)
        folder.rename(away)
        folder.mkdir()
        with pytest.raises(everlong.MostFilesGoneError):
            mm.sync(folder)
        folder.rmdir()
        with pytest.raises(FileNotFoundError):
            mm.sync(folder)
        folder.write_text("a file stands there")
        for told in (False, True):
            with pytest.raises(NotADirectoryError):
                mm.sync(folder, forget_all=told)
        folder.unlink()
        shutil.copytree(away, folder, copy_function=shutil.copyfile)
        report = mm.sync(folder)
        assert (report.kept, report.tokens, report.forgotten, blocks(mm)) == (4, 0, 0, before)


def test_a_folder_that_is_not_there_is_forgotten_when_told(tmp_path: Path) -> None:
    """And no other folder with it."""
    fill(tmp_path / "notes", 3)
    fill(tmp_path / "notes2", 2)
    with open_model() as mm:
        mm.sync(tmp_path / "notes")
        mm.sync(tmp_path / "notes2")
        shutil.rmtree(tmp_path / "notes")
        assert len(mm.sync(tmp_path / "notes", forget_all=True, dry_run=True).gone) == 3
        assert mm.sync(tmp_path / "notes", forget_all=True).forgotten == 3
        assert {Path(block.origin).parents[1] for block in mm.memory.blocks()} == {tmp_path / "notes2"}
        assert mm.sync(tmp_path / "never", forget_all=True).forgotten == 0


def test_few_files_may_go_and_all_may_move(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    files = fill(folder, 4)
    with open_model() as mm:
        assert mm.sync(tmp_path / "notes").new
        for path in files[:2]:
            path.unlink()
        assert len(mm.sync(folder).gone) == 2
        (folder / "elsewhere").mkdir()
        for path in files[2:]:
            path.rename(folder / "elsewhere" / path.name)
        assert len(mm.sync(folder).moved) == 2
        (folder / "elsewhere" / "n2.txt").unlink()
        (folder / "elsewhere" / "n3.txt").rename(folder / "n3.txt")
        report = mm.sync(folder)
        assert (len(report.moved), len(report.gone), report.most_gone) == (1, 1, False)
        empty = tmp_path / "empty"
        empty.mkdir()
        assert mm.sync(empty).forgotten == 0  # nothing was ever read from it


def test_what_turns_unreadable_half_way_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that cannot be looked at any more, or listed, and files that cannot be opened."""
    folder = tmp_path / "notes"
    fill(folder, 6)
    with open_model() as mm:
        mm.sync(folder)
        before = blocks(mm)
        scandir = os.scandir

        class Entry:
            """A folder whose disk went away behind its name."""

            def __init__(self, entry: os.DirEntry[str]) -> None:
                self.name, self.path, self._entry = entry.name, entry.path, entry

            def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
                about = self._entry.stat(follow_symlinks=follow_symlinks)
                if stat.S_ISDIR(about.st_mode):
                    raise OSError(107, "Transport endpoint is not connected")
                return about

        def gone_behind(path: Any) -> Any:
            return iter([Entry(entry) for entry in scandir(path)])

        def gone_at_first(path: Any) -> Any:
            if not os.path.samefile(path, folder):
                raise FileNotFoundError(2, "No such file or directory", str(path))
            return scandir(path)

        for broken in (gone_behind, gone_at_first):
            monkeypatch.setattr(os, "scandir", broken)
            report = mm.sync(folder)
            assert (len(report.unreadable), report.gone, report.most_gone) == (2, (), False)
            assert blocks(mm) == before
        monkeypatch.undo()
        assert mm.sync(folder).kept == 6


def test_a_file_that_became_a_link_or_a_pipe_is_not_followed(tmp_path: Path) -> None:
    """Between the listing and the reading, too: then what was read of it stays."""
    folder = tmp_path / "notes"
    files = fill(folder, 5)
    (tmp_path / "secret.txt").write_text("the secret")

    def change(path: str) -> None:
        if not files[3].is_symlink():
            files[3].unlink()
            files[3].symlink_to(tmp_path / "secret.txt")

    with open_model() as mm:
        mm.sync(folder)
        for path in files[2:4]:
            path.write_text("other words")
        report = mm.sync(folder, on_file=change)
        assert report.unreadable == {"d1/n3.txt": "is a link, which is not followed"}
        assert "secret" not in "".join(mm.text(block.id) for block in mm.memory.blocks())
        assert str(files[3]) in {block.origin for block in mm.memory.blocks()}
        assert mm.sync(folder).gone == ("d1/n3.txt",)


def test_a_file_too_large_to_be_read_is_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be all holes, and take years."""
    folder = tmp_path / "notes"
    fill(folder, 2)
    with (folder / "holes.txt").open("wb") as made:
        made.truncate(1 << 42)
    with open_model() as mm:
        for _ in range(2):
            report = mm.sync(folder)
            assert list(report.unreadable) == ["holes.txt"]
            assert f"at most {parsing.LIMITS.file_bytes:,} are read" in report.unreadable["holes.txt"]
        (folder / "holes.txt").write_text("words")
        assert mm.sync(folder).new == ("holes.txt",)
        with (folder / "holes.txt").open("ab") as made:
            made.truncate(1 << 42)
        for _ in range(2):  # what was read of it stays
            report = mm.sync(folder)
            assert (list(report.unreadable), report.changed, report.forgotten) == (["holes.txt"], (), 0)
            assert str(folder / "holes.txt") in {block.origin for block in mm.memory.blocks()}
