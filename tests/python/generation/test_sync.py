"""A memory is kept in step with a folder: only what changed is read, and a pass that is killed is gone on with."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import everlong
from everlong.cli.unfinished import unfinished_notes
from everlong.memory.origins import origin_tag
from everlong.memory.places import place_in
from everlong.memory.sources import sources
from everlong.memory.synced import store_table
from support import TINY_MEMORY, byte_tokenizer, random_text, tiny_model
from support.examples import examples
from support.made_files import mbox_of
from support.processes import killed, tell_and_wait

MODEL = tiny_model()


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Texts of some letters are no work to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def open_model(memory: Path | None = None) -> everlong.MemoryModel:
    return everlong.MemoryModel(MODEL, byte_tokenizer(), memory, TINY_MEMORY)


def held(mm: everlong.MemoryModel) -> dict[str, str]:
    """What the memory holds, as text by path."""
    texts: dict[str, str] = {}
    for block in mm.memory.blocks():
        texts[block.origin] = texts.get(block.origin, "") + mm.text(block.id)
    return texts


def there(folder: Path) -> dict[str, str]:
    """What a folder of plain text holds, read without everlong."""
    return {str(path): path.read_text() for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 0}


def fill(folder: Path, files: int, letters: int = 40) -> None:
    for number in range(files):
        path = folder / f"d{number % 7}" / f"n{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(random_text(letters, seed=number + 1))


def change(folder: Path, changed: int, gone: int, moved: int) -> int:
    """Change, remove and move files. Return how many letters the changed ones have."""
    files = sorted(path for path in folder.rglob("*.txt"))
    letters = 0
    for number, path in enumerate(files[:changed]):
        path.write_text(random_text(20 + number, seed=900 + number))
        letters += 20 + number
    for path in files[changed : changed + gone]:
        path.unlink()
    (folder / "elsewhere").mkdir()
    for number, path in enumerate(files[changed + gone : changed + gone + moved]):
        path.rename(folder / "elsewhere" / (path.name if number % 2 else f"other{number}.txt"))
    return letters


@pytest.mark.slow
def test_of_a_thousand_files_only_what_changed_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    fill(folder, 1000, letters=12)
    with open_model(tmp_path / "memory") as mm:
        first = mm.sync(folder)
        assert (len(first.new), first.tokens) == (1000, 12_000)
        assert held(mm) == there(folder)
        again = mm.sync(folder)
        assert (again.kept, again.tokens, again.forgotten) == (1000, 0, 0)
    letters = change(folder, 10, 5, 5)
    with open_model(tmp_path / "memory") as mm:
        wanted = mm.sync(folder, dry_run=True)
        report = mm.sync(folder)
        assert (report.new, report.changed, report.moved, report.gone) == (
            (),
            wanted.changed,
            wanted.moved,
            wanted.gone,
        )
        assert list(map(len, (report.changed, report.moved, report.gone))) == [10, 5, 5]
        assert (report.kept, report.tokens, report.forgotten) == (980, letters, 15)
        assert held(mm) == there(folder)


def test_a_dry_run_does_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "notes", 5)
    with open_model() as mm:
        assert len(mm.sync(tmp_path / "notes", dry_run=True).new) == 5
        assert mm.memory.blocks() == []
        mm.sync(tmp_path / "notes")
        change(tmp_path / "notes", 1, 1, 1)
        before = held(mm)
        report = mm.sync(tmp_path / "notes", dry_run=True)
        assert list(map(len, (report.changed, report.moved, report.gone))) == [1, 1, 1]
        assert (held(mm), report.tokens) == (before, 0)


def test_gitignore_and_patterns_choose(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    names = ("a.py", "b.md", "build/c.py", "sub/d.py", "sub/keep.log", "sub/e.log", "f.log", ".git/g", "sub/deep/h.py")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"text of {name}")
    (folder / ".gitignore").write_text("*.log\nbuild/\n/sub/deep/\n")
    (folder / "sub" / ".gitignore").write_text("!keep.log\n")

    def chosen(**how: Any) -> set[str]:
        with open_model() as mm:
            return set(mm.sync(folder, dry_run=True, **how).new)

    assert chosen() == {"a.py", "b.md", "sub/d.py", "sub/keep.log"}
    assert chosen(include="*.py") == {"a.py", "sub/d.py"}
    assert chosen(include=["*.py", "*.md"], exclude="sub/") == {"a.py", "b.md"}
    assert chosen(gitignore=False) == set(names) - {".git/g"}
    with open_model() as mm:
        mm.sync(folder)
        assert set(mm.sync(folder, exclude="*.md").gone) == {"b.md"}


def test_only_the_folders_own_files_are_read(tmp_path: Path) -> None:
    """No link leads out of it, a memory within it is none of its files, and what else the memory holds stays."""
    folder, outside = tmp_path / "notes", tmp_path / "outside"
    fill(folder, 2)
    outside.mkdir()
    (outside / "secret.txt").write_text("a secret")
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "link").symlink_to(outside, target_is_directory=True)
    os.mkfifo(folder / "pipe")
    (folder / "own.txt").write_text("read by hand")
    with open_model(folder / "memory") as mm:
        mm.read(folder / "own.txt")
        mm.read("said by hand", source="hand")
        assert set(mm.sync(folder).new) == {"d0/n0.txt", "d1/n1.txt", "own.txt"}
        (folder / "own.txt").unlink()
        assert mm.sync(folder).gone == ("own.txt",)
        assert sum(block.source in ("hand", "own") for block in mm.memory.blocks()) == 2
        assert "secret" not in "".join(held(mm).values())


def test_what_cannot_be_looked_at_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be listed, and a file that cannot be opened, are not gone."""
    folder = tmp_path / "notes"
    fill(folder, 10)
    with open_model() as mm:
        mm.sync(folder)
        before = held(mm)
        opened = os.open
        (folder / "d1" / "n1.txt").write_text("changed, but shut")

        def shut(path: Any, *how: Any, **named: Any) -> Any:
            if Path(path).name in ("n1.txt", "d3"):
                raise PermissionError(13, "Permission denied", str(path))
            return opened(path, *how, **named)

        monkeypatch.setattr(os, "open", shut)
        report = mm.sync(folder)
        assert set(report.unreadable) == {"d3", "d1/n1.txt"}
        assert (report.gone, report.new, report.changed) == ((), (), ())
        assert held(mm) == before
        monkeypatch.undo()
        with pytest.raises(FileNotFoundError):
            mm.sync(tmp_path / "no such folder")
        assert held(mm) == before
        shutil.rmtree(folder / "d3")
        assert set(mm.sync(folder).gone) == {"d3/n3.txt"}


def test_a_file_without_text_is_passed_over_once_and_may_get_some(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text("text of a")
    (folder / "b.bin").write_bytes(b"\xff\0" * 40)
    (folder / "empty.txt").write_text("")
    (folder / "kept.txt").write_text("text that stays")
    with open_model() as mm:
        for report in (mm.sync(folder), mm.sync(folder)):
            assert set(report.unreadable) == {"b.bin"}
        assert (report.kept, report.new) == (3, ())
        kept = {str(folder / "kept.txt"): "text that stays"}
        (folder / "a.txt").write_bytes(b"\xff\0" * 40)
        assert (mm.sync(folder).forgotten, held(mm)) == (1, kept)
        (folder / "b.bin").write_text("text of b")
        assert mm.sync(folder).new == ("b.bin",)
        assert held(mm) == {str(folder / "b.bin"): "text of b", **kept}


def test_the_same_size_and_time_is_not_looked_into_and_a_touched_file_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    fill(folder, 3)
    old = 1_600_000_000
    for path in folder.rglob("*.txt"):
        os.utime(path, (old, old))
    with open_model() as mm:
        mm.sync(folder)
        (folder / "d0" / "n0.txt").write_text("x" * 40)
        os.utime(folder / "d0" / "n0.txt", (old, old))
        os.utime(folder / "d1" / "n1.txt", (old + 5, old + 5))
        assert mm.sync(folder).kept == 3
        store_table(mm.memory.core, {})  # without the table all is looked into
        assert mm.sync(folder).changed == ("d0/n0.txt",)
        assert held(mm) == there(folder)


def test_a_moved_file_keeps_its_blocks_wherever_it_goes(tmp_path: Path) -> None:
    """Also with its folder, and back; another file that comes to its old place is not taken for it."""
    folder = tmp_path / "notes"
    fill(folder, 4)
    with open_model() as mm:
        mm.sync(folder)
        folder.rename(tmp_path / "renamed")
        folder = tmp_path / "renamed"
        report = mm.sync(folder)
        assert (len(report.moved), report.tokens, held(mm)) == (4, 0, there(folder))
        (folder / "d0" / "n0.txt").rename(folder / "x.txt")
        assert mm.sync(folder).tokens == 0
        ids = [block.id for block in mm.memory.blocks(where=everlong.Where(origin=folder / "x.txt"))]
        (folder / "d0" / "n0.txt").write_text("newer text in the old place")
        assert mm.sync(folder).changed == ("x.txt",)
        assert held(mm) == there(folder)
        old = folder / "d0" / "n0.txt"
        pages = mm.memory.core.search.recent_pages(0, mm.stream_tokens, 100, tags=[origin_tag(str(old))])
        assert {page.block for page in pages} == {block.id for block in mm.memory.blocks() if block.origin == str(old)}
        assert not {block.id for block in mm.memory.blocks()} & set(ids)
        (folder / "x.txt").rename(folder / "y.txt")
        mm.sync(folder)
        (folder / "y.txt").rename(folder / "x.txt")
        mm.sync(folder)
        assert held(mm) == there(folder)


def test_of_a_file_that_grew_only_the_end_is_read(tmp_path: Path) -> None:
    """And of one that changed in the middle what stands behind it; a file that becomes what it was is right, too."""
    log = tmp_path / "log.txt"
    first, more, other = random_text(600, seed=1), random_text(300, seed=2), random_text(200, seed=3)
    with open_model(tmp_path / "memory") as mm:
        for text, most, least in (
            (first, 600, 600),
            (first + more, 300 + 128, 300),
            (first + more[:100] + other, 200 + 128, 200),
            (first[:300] + other + first[300:], 500 + 128, 500),
            (first, 600, 1),
            (first + more, 900, 300),
            (first + more, 0, 0),
        ):
            log.write_text(text)
            before = {block.id for block in mm.memory.blocks()}
            report = mm.sync(tmp_path, exclude="memory")
            assert least <= report.tokens <= most
            assert held(mm) == {str(log): text}
            assert len(before & {block.id for block in mm.memory.blocks()}) == len(before) - report.forgotten
            assert mm.sync(tmp_path, exclude="memory").tokens == 0
        assert mm.sync(tmp_path, exclude="memory", tags="new").tokens == 0
        log.write_text(first + more + other)
        assert mm.sync(tmp_path, exclude="memory", tags="new").tokens == 1100
        assert {block.tags for block in mm.memory.blocks()} == {("new",)}


def test_a_file_that_becomes_what_it_was_while_a_pass_is_cut_short_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stood behind its first blocks is forgotten by then."""
    log = tmp_path / "log.txt"
    first = random_text(600, seed=1)

    def stop(*given: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    with open_model(tmp_path / "memory") as mm:
        log.write_text(first)
        mm.sync(tmp_path, exclude="memory")
        log.write_text(first[:300] + "another end")
        monkeypatch.setattr(mm._reader, "read", stop)
        with pytest.raises(KeyboardInterrupt):
            mm.sync(tmp_path, exclude="memory")
        assert 0 < len(held(mm)[str(log)]) < 300
        monkeypatch.undo()
        log.write_text(first)
        mm.sync(tmp_path, exclude="memory")
        assert held(mm) == {str(log): first}


def test_a_file_that_says_another_date_is_read_anew(tmp_path: Path) -> None:
    """Its words are the same, and so would be its first blocks."""
    page = tmp_path / "page.html"
    with open_model() as mm:
        for year in (2018, 2019):
            page.write_text(f"<meta name=date content={year}-05-06><p>{random_text(300)}")
            assert mm.sync(tmp_path).tokens >= 300
            happened = {block.happened for block in mm.memory.blocks()}
            assert {moment.year for moment in happened if moment is not None} == {year}
            assert len(happened) == 1


def test_of_a_mailbox_only_new_letters_are_read(tmp_path: Path) -> None:
    """And all that stand at another place by then, so that they are cited at the right one."""
    letters = [random_text(150, seed=number) for number in range(5)]
    box = tmp_path / "letters.mbox"
    with open_model() as mm:

        def sync(told: list[str]) -> int:
            box.write_bytes(mbox_of(told, tmp_path))
            tokens = mm.sync(tmp_path).tokens
            found: dict[str, str] = {}
            for block in mm.memory.blocks(where=everlong.Where(origin=box)):
                place = place_in(mm.memory.core.blocks.info(block.id).tags, 0, 1)
                found[place] = found.get(place, "") + mm.text(block.id)
            assert list(found) == [f"message {number}, River {number}" for number in range(1, len(told) + 1)]
            assert all(letter in text for letter, text in zip(told, found.values(), strict=True))
            assert mm.sync(tmp_path).tokens == 0
            return tokens

        whole = sync(letters[:4])
        assert 150 < sync(letters) < 300
        assert whole <= sync(letters[1:]) <= whole + 300
        assert sync(letters[1:4]) == 0
        assert sync(letters[1:]) > 150


def test_what_was_cut_short_names_the_command_that_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    fill(folder, 4, letters=600)

    def stop(path: str) -> None:
        if path == "d2/n2.txt":
            archived = mm.frame.archive.blocks

            def told(*of_block: object) -> None:
                if mm.frame.archive.blocks == archived + 2:
                    raise KeyboardInterrupt

            mm.frame.observe(told)

    with open_model(tmp_path / "memory") as mm:
        with pytest.raises(KeyboardInterrupt):
            mm.sync(folder, on_file=stop)
        (note,) = unfinished_notes(mm.memory, tmp_path / "memory")
        assert f"everlong sync {folder}/ --memory" in note
    with open_model(tmp_path / "memory") as mm:
        report = mm.sync(folder)
        assert (report.changed, report.new) == (("d2/n2.txt",), ("d3/n3.txt",))
        assert 0 < report.resumed_tokens < 600
        assert report.tokens == 1200 - report.resumed_tokens
        assert (held(mm), unfinished_notes(mm.memory, tmp_path)) == (there(folder), [])


NAMES = ("a.txt", "b.txt", "sub/a.txt", "sub/c.txt")
STEPS = st.tuples(st.sampled_from(("write", "move", "remove", "swap")), st.sampled_from(NAMES), st.sampled_from(NAMES))


@pytest.mark.slow
@examples(15)
@given(st.lists(st.lists(STEPS, min_size=1, max_size=4), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_whatever_happens_to_a_folder_the_memory_holds_it(passes: Any, random: Any) -> None:
    with tempfile.TemporaryDirectory() as made, open_model() as mm:
        folder = Path(made).resolve()
        (folder / "sub").mkdir()
        for steps in passes:
            for what, one, other in steps:
                first, second = folder / one, folder / other
                if what == "write":
                    first.write_text(random.choice(("red ", "green ", "blue ")) * random.randint(1, 60))
                elif first.exists() and what == "remove":
                    first.unlink()
                elif first.exists() and what == "move":
                    first.rename(second)
                elif first.exists() and second.exists() and what == "swap":
                    words = first.read_text(), second.read_text()
                    first.write_text(words[1])
                    second.write_text(words[0])
            mm.sync(folder, forget_all=True)
            assert held(mm) == there(folder)
            assert mm.sync(folder).tokens == 0


def _killed_at(memory: Path, folder: Path, point: int, pipe: Connection) -> None:
    """Sync until the memory was written to `point` times."""
    torch.set_num_threads(1)
    with open_model(memory) as mm:
        written = 0

        def before() -> None:
            nonlocal written
            written += 1
            if written > point:
                mm.memory.core.upkeep.flush()
                tell_and_wait(pipe, False)

        core: Any = mm.memory.core
        core = _Told(core, before, blocks=_Told(core.blocks, before))
        mm.memory.core = mm._reader._readings._core = core
        mm.sync(folder)
        tell_and_wait(pipe, True)


class _Told:
    """Stands for a part of the core, and tells before each change of the memory."""

    _CHANGES = ("append", "add_tags", "forget", "set_attribute", "put_file")

    def __init__(self, real: Any, before: Callable[[], None], **others: Any) -> None:
        self._real, self._before = real, before
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name not in self._CHANGES:
            return real

        def call(*given: Any, **named: Any) -> Any:
            self._before()
            return real(*given, **named)

        return call


@pytest.mark.slow
def test_a_pass_that_is_killed_anywhere_ends_the_same(tmp_path: Path) -> None:
    """A pass over files that are new, changed, gone, and moved, some of several blocks."""
    folder = tmp_path / "notes"
    fill(folder, 16, letters=150)
    with open_model(tmp_path / "begun") as mm:
        mm.sync(folder)
    change(folder, 6, 3, 5)
    (folder / "new.txt").write_text(random_text(600, seed=77))
    with sorted(folder.rglob("n*.txt"))[-2].open("a") as grown:
        grown.write(random_text(400, seed=78))
    shutil.copytree(tmp_path / "begun", tmp_path / "whole")
    with open_model(tmp_path / "whole") as mm:
        report = mm.sync(folder)
        wanted, names = held(mm), Counter(one.name for one in sources(mm.memory))
    assert wanted == there(folder)
    points = 0
    while True:
        memory = tmp_path / f"killed{points}"
        shutil.copytree(tmp_path / "begun", memory)
        if killed(_killed_at, memory, folder, points):
            break
        with open_model(memory) as mm:
            rest = mm.sync(folder)
            assert held(mm) == wanted, points
            assert Counter(one.name for one in sources(mm.memory)) == names
            assert rest.tokens <= report.tokens
            assert mm.sync(folder).tokens == 0
        shutil.rmtree(memory)
        points += 1
    assert points >= 50
