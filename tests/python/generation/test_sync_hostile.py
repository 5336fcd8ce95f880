"""What a hostile folder, or a machine that is busy, does to a sync: nothing is forgotten for it, and nothing let in."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everlong
from everlong.files import parsing, snapshot
from everlong.files.parsing import Limits
from everlong.generation import sync
from everlong.memory.origins import origin_of, spelled, unspelled
from support import TINY_MEMORY, byte_tokenizer, random_text, tiny_model

MODEL = tiny_model()
LONG = parsing.SMALL + 1  # bytes, of which a child is needed


def open_model(memory: Path | None = None) -> everlong.MemoryModel:
    return everlong.MemoryModel(MODEL, byte_tokenizer(), memory, TINY_MEMORY)


def held(mm: everlong.MemoryModel) -> dict[str, str]:
    texts: dict[str, str] = {}
    for block in mm.memory.blocks():
        name = os.path.basename(block.origin)
        texts[name] = texts.get(name, "") + mm.text(block.id)
    return texts


def fill(folder: Path, files: int = 3) -> list[Path]:
    folder.mkdir()
    made = [folder / f"n{number}.txt" for number in range(files)]
    for number, path in enumerate(made):
        path.write_text(random_text(60, seed=number + 1))
    return made


# --- what cannot be read now


def no_time(patched: pytest.MonkeyPatch, file: Path) -> None:
    patched.setattr(parsing, "_in_child", _child_within(Limits(seconds=0.001)))
    file.write_text("<p>a page</p>" * LONG)


def no_ram(patched: pytest.MonkeyPatch, file: Path) -> None:
    patched.setattr(parsing, "_in_child", _child_within(Limits(ram=1 << 20)))
    file.write_text("<p>a page</p>")


def too_much_text(patched: pytest.MonkeyPatch, file: Path) -> None:
    patched.setattr(parsing, "_in_child", _child_within(Limits(text_bytes=3)))
    file.write_text("<p>a page of words</p>")


def no_package(patched: pytest.MonkeyPatch, file: Path) -> None:
    patched.setattr(parsing, "_libraries", list)
    file.write_text("<p>a page</p>")


def no_process(patched: pytest.MonkeyPatch, file: Path) -> None:
    def refused(*given: Any, **named: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    patched.setattr(parsing.subprocess, "Popen", refused)
    file.write_text("<p>a page</p>")


def _child_within(limits: Limits) -> Callable[..., Any]:
    real = parsing._in_child
    return lambda file, suffix, given: real(file, suffix, limits)


@pytest.mark.parametrize("kind", [no_time, no_ram, too_much_text, no_package, no_process])
@pytest.mark.parametrize("was_moved", [False, True])
def test_what_cannot_be_read_now_stays_and_is_tried_again(
    kind: Callable[[pytest.MonkeyPatch, Path], None], was_moved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a file that was moved, at whose old place another one stands by now."""
    folder = tmp_path / "notes"
    fill(folder)
    page = folder / "page.html"
    first = folder / "first.html" if was_moved else page
    first.write_text("<p>what was read</p>")
    with open_model() as mm:
        mm.sync(folder)
        if was_moved:
            first.rename(page)
            assert mm.sync(folder).moved
            first.write_text("<p>another page</p>")
        before = held(mm)
        with monkeypatch.context() as patched:
            kind(patched, page)
            for _ in range(2):
                report = mm.sync(folder)
                assert "page.html" in report.unreadable
                assert "page.html" not in report.changed
                assert before.items() <= held(mm).items()
        page.write_text("<p>read again</p>")
        report = mm.sync(folder)
        assert not report.unreadable
        assert "read again" in held(mm)["page.html"]


def test_a_new_file_that_could_not_be_read_is_tried_again_and_one_without_text_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "notes"
    fill(folder)
    (folder / "page.html").write_text("<p>a page</p>")
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 broken")
    with open_model() as mm:
        with monkeypatch.context() as patched:
            patched.setattr(parsing, "_in_child", _child_within(Limits(ram=1 << 20)))
            assert set(mm.sync(folder).unreadable) == {"page.html", "broken.pdf"}
        assert mm.sync(folder).new == ("page.html",)
        monkeypatch.setattr(parsing, "_in_child", lambda *given: pytest.fail("it did not change"))
        assert set(mm.sync(folder).unreadable) == {"broken.pdf"}


# --- files that lose their text


@pytest.mark.parametrize(
    "content", [b"\n", b" \n\t\n", b"\0" * 90, b"%PDF-1.4 broken", b"\x89PNG\r\n", b"PK\x03\x04", b""]
)
def test_files_that_lose_their_text_are_lost_before_anything_is_forgotten(content: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    made = [folder / f"n{number}.md" for number in range(5)]
    for number, path in enumerate(made):
        path.write_text(random_text(60, seed=number + 1))
    with open_model() as mm:
        mm.sync(folder)
        before = held(mm)
        for path in made[:2]:
            path.write_bytes(content)
        made[3].write_text("it changed, and has text")
        assert not mm.sync(folder, dry_run=True).most_gone
        made[2].write_bytes(content)
        assert mm.sync(folder, dry_run=True).most_gone
        with pytest.raises(everlong.MostFilesGoneError, match="3 of 5 files"):
            mm.sync(folder)
        assert held(mm) == before
        mm.sync(folder, forget_all=True)
        assert {name for name, text in held(mm).items() if text.strip()} == {"n3.md", "n4.md"}


def test_gone_files_and_files_without_text_are_counted_together(tmp_path: Path) -> None:
    made = fill(tmp_path / "notes", 5)
    with open_model() as mm:
        mm.sync(tmp_path / "notes")
        made[0].unlink()
        made[1].write_text("")
        made[2].write_text(" ")
        with pytest.raises(everlong.MostFilesGoneError):
            mm.sync(tmp_path / "notes")
        made[2].write_text("words")
        assert mm.sync(tmp_path / "notes").changed == ("n1.txt", "n2.txt")


# --- names


def test_every_name_has_a_spelling_of_its_own(tmp_path: Path) -> None:
    names = [
        b"\xff",
        rb"\udcff",
        rb"\\udcff",
        b"\\\xff",
        rb"\\" + b"\xff",
        b"\xff" + rb"\udcff",
        rb"a\b",
        rb"\xff",
        b"a",
    ]
    names += ["ü".encode(), "ü".encode("latin-1"), rb"\udcfc", b"\xfe", rb"\udcfF"]
    spellings = [spelled(f"/d/{os.fsdecode(name)}") for name in names]
    assert len(set(spellings)) == len(names)
    for name, spelling in zip(names, spellings, strict=True):
        assert os.fsencode(unspelled(spelling)) == b"/d/" + name
        spelling.encode()
    assert spelled("/d/a\\b ü") == "/d/a\\b ü"
    assert origin_of(tmp_path / os.fsdecode(b"\xff")) == f"{tmp_path}/\\udcff"


@pytest.mark.parametrize("of_folder", [b"notes", b"n\xff", rb"n\udcff", rb"a\b"])
def test_names_that_look_like_others_are_files_of_their_own(of_folder: bytes, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), of_folder)))
    folder.mkdir()
    names = [b"\xff.txt", rb"\udcff.txt", rb"\\udcff.txt", b"good.txt"]
    files = [folder / os.fsdecode(name) for name in names]
    for number, file in enumerate(files):
        file.write_text(random_text(60, seed=number + 1))
    with open_model(tmp_path / "memory") as mm:
        report = mm.sync(folder)
        assert (len(report.new), report.unreadable) == (4, {})
        assert all("/" not in name for name in report.new)
        assert len({block.origin for block in mm.memory.blocks()}) == 4
        assert mm.sync(folder).kept == 4
        other = tmp_path / "other"
        other.mkdir()
        (other / "same.txt").write_text(files[0].read_text())
        assert mm.sync(other).new == ("same.txt",)  # the first one stands where it stood
        files[1].unlink()
        assert len(mm.sync(folder).gone) == 1
        assert len({block.origin for block in mm.memory.blocks()}) == 4
        assert mm.memory.blocks(where=everlong.Where(origin=files[0]))
        assert not mm.memory.blocks(where=everlong.Where(origin=files[1]))


# --- links, and files that change meanwhile


@pytest.mark.parametrize("deep", [1, 2])
def test_a_link_in_place_of_a_folder_above_is_not_followed(deep: int, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "notes"
    inner = folder.joinpath(*["sub"] * deep)
    inner.mkdir(parents=True)
    (outside / "sub").mkdir(parents=True)
    for place in (outside, outside / "sub"):
        (place / "b.txt").write_text("TOPSECRET of another folder. " * 5)
    (folder / "a.txt").write_text("plain words here. " * 5)
    (inner / "b.txt").write_text("inner words. " * 5)

    def swap(path: str) -> None:
        if path == "a.txt":
            (folder / "sub").rename(tmp_path / "moved")
            (folder / "sub").symlink_to(outside)

    with open_model() as mm:
        report = mm.sync(folder, on_file=swap)
        assert "is a link" in report.unreadable["/".join(["sub"] * deep) + "/b.txt"]
        assert set(held(mm)) == {"a.txt"}


def test_a_folder_that_becomes_a_link_while_it_is_listed_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.txt").write_text("TOPSECRET")
    (folder / "a.txt").write_text("plain words")
    listed = os.scandir

    def swapping(path: Any) -> Any:
        found = list(listed(path))
        for entry in found:
            if entry.name == "sub":
                entry.stat(follow_symlinks=False)  # which the entry keeps
                (folder / "sub").rename(tmp_path / "moved")
                (folder / "sub").symlink_to(outside)
        return iter(found)

    with open_model() as mm:
        monkeypatch.setattr(os, "scandir", swapping)
        report = mm.sync(folder)
        monkeypatch.undo()
        assert (report.new, set(report.unreadable)) == (("a.txt",), {"sub"})


def test_the_digest_is_of_the_bytes_that_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    first, other = "ordinary words of the file. " * 3, "words that stood here once. " * 3
    fill(folder)
    (folder / "a.txt").write_text(first)
    with open_model() as mm:
        mm.sync(folder, on_file=lambda path: (path == "a.txt" and (folder / "a.txt").write_text(other)) and None)
        assert held(mm)["a.txt"] == other
        (folder / "a.txt").write_text(first)
        for _ in range(2):
            mm.sync(folder)
            assert held(mm)["a.txt"] == first


@pytest.mark.parametrize("size", [1, LONG])
def test_a_file_that_is_another_one_only_while_it_is_parsed_is_read_as_it_was_hashed(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "notes"
    file = fill(folder)[0]
    true, draft = (word + " " * (size - 1) + random_text(80, seed=seed) for word, seed in (("t", 7), ("d", 8)))
    file.write_text(true)
    about = file.stat()
    real = sync.file_texts

    def parsed(path: Any, **how: Any) -> Any:
        if Path(path) != file:
            return real(path, **how)
        file.write_text(draft)
        try:
            return real(path, **how)
        finally:
            file.write_text(true)
            os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))

    with open_model() as mm:
        with monkeypatch.context() as patched:
            patched.setattr(sync, "file_texts", parsed)
            mm.sync(folder)
        assert held(mm)["n0.txt"] == true
        assert mm.sync(folder).kept == 3
        assert held(mm)["n0.txt"] == true


def test_a_file_that_changes_while_it_is_copied_stays_as_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "notes"
    file = fill(folder)[0]
    with open_model() as mm:
        mm.sync(folder)
        before = held(mm)
        file.write_text("half of it is ")
        real = os.memfd_create

        def changing(*args: Any) -> int:
            made = real(*args)
            monkeypatch.setattr(snapshot.os, "write", written)
            return made

        def written(descriptor: int, piece: bytes) -> int:
            monkeypatch.undo()
            file.write_text("another text by now")
            return os.write(descriptor, piece)

        monkeypatch.setattr(snapshot.os, "memfd_create", changing)
        assert mm.sync(folder).unreadable == {"n0.txt": "changes while it is read"}
        assert held(mm) == before
        assert mm.sync(folder).changed == ("n0.txt",)
        assert held(mm)["n0.txt"] == "another text by now"


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, 3_000_000])
@pytest.mark.parametrize("most", [5, 1 << 20, 1 << 30])
def test_a_copy_is_of_the_bytes_of_its_digest(size: int, most: int, tmp_path: Path) -> None:
    data = random.Random(size).randbytes(size)
    (tmp_path / "a").write_bytes(data)
    with open(tmp_path / "a", "rb") as file, snapshot.snapshot(file.fileno(), most) as (copy, digest):
        there = os.pread(copy, size + 1, 0)
        assert there == data[: most + 1]
        assert digest == hashlib.sha256(there).hexdigest()
        assert os.fstat(copy).st_size == len(there)
