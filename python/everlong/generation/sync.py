"""Keeps a memory in step with a folder: reads what is new, forgets what is gone, keeps the rest."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import everlong._core as _core
from everlong.errors import EverlongError
from everlong.files.document import NoTextError, UnreadableFileError
from everlong.files.folder import Choice
from everlong.files.parsing import LIMITS, opened, too_large
from everlong.files.snapshot import snapshot
from everlong.generation.exclusive import CallGuard, exclusive
from everlong.generation.file_input import FileTexts, file_texts
from everlong.generation.progress import Progress
from everlong.generation.reading import Reader, ReadReport
from everlong.generation.sync_plan import Plan, plan
from everlong.memory import Memory
from everlong.memory.origins import (
    content_in,
    content_tag,
    happened_tag,
    origin_tag,
    require_users,
    split_reserved_tags,
    text_tag,
)
from everlong.memory.places import place_in
from everlong.memory.synced import EMPTY, FileState, SyncedFile, store_table
from everlong.memory.where import names_of, require_tags
from everlong.paths import from_home
from everlong.text import notebook_html


@dataclasses.dataclass(frozen=True)
class SyncReport:
    """What a `sync` did, or would do. Paths are from the folder on. All of it is durable."""

    new: tuple[str, ...]
    changed: tuple[str, ...]  # read anew from the first block that changed; what stood there is forgotten
    moved: tuple[tuple[str, str], ...]  # from where, to where; nothing of them is read again
    gone: tuple[str, ...]  # forgotten
    kept: int  # files that did not change
    unreadable: dict[str, str]  # passed over, and why
    passed_over: dict[str, str]  # parts of files, such as a picture in an archive, and why
    tokens: int = 0  # read now
    blocks: int = 0  # archived now
    resumed_tokens: int = 0  # of files whose reading was cut short
    forgotten: int = 0  # blocks
    seconds: float = 0.0
    most_gone: bool = False  # more than half of the folder's files would be forgotten: it takes forget_all=True

    def _repr_html_(self) -> str:
        """Return what a notebook shows: numbers, and paths that unfold."""
        listed = {name: value for name, value in vars(self).items() if isinstance(value, tuple | dict) and value}
        numbers = notebook_html.table(
            (name, value) for name, value in vars(self).items() if value and name not in listed
        )
        return numbers + "".join(
            notebook_html.unfolding(
                f"{len(value):,} {name}", "\n".join(map(_line, value.items() if isinstance(value, dict) else value))
            )
            for name, value in listed.items()
        )


def _line(entry: str | tuple[str, str]) -> str:
    return entry if isinstance(entry, str) else ": ".join(entry)


def report_of(found: Plan, passed_over: dict[str, str], read: ReadReport, forgotten: int) -> SyncReport:
    """Return a plan, and what came of it, as a user reads it."""
    name = found.name
    return SyncReport(
        tuple(map(name, found.new)),
        tuple(map(name, found.changed)),
        tuple((name(old), name(new)) for old, new in found.moved),
        tuple(map(name, found.gone)),
        len(found.kept),
        {name(path): why for path, why in found.unreadable.items()},
        {name(path): why for path, why in passed_over.items()},
        read.tokens,
        read.blocks,
        read.resumed_tokens,
        forgotten,
        read.seconds,
        found.most_is_lost,
    )


def planned(
    memory: Memory | None, folder: str | os.PathLike[str], choice: Choice, *, forget_all: bool = False
) -> SyncReport:
    """Return what a sync would do, and do nothing. None stands for a memory that is not made yet."""
    found, _ = plan(memory, from_home(folder).resolve(), choice, forget_all=forget_all)
    return report_of(found, {}, ReadReport(0, 0, 0.0), 0)


def _was_left(info: _core.BlockInfo, digest: str) -> bool:
    """Return whether a block's file was what it is to become, and then something else: tags come only once."""
    return content_tag(digest) in info.tags and content_in(info.tags) != digest


class FolderSync:
    """What a MemoryModel does with folders."""

    memory: Memory
    _reader: Reader
    _guard: CallGuard

    @exclusive
    def sync(
        self,
        folder: str | os.PathLike[str],
        *,
        include: str | Sequence[str] = (),
        exclude: str | Sequence[str] = (),
        gitignore: bool = True,
        tags: str | Sequence[str] = (),
        forget_all: bool = False,
        dry_run: bool = False,
        progress: Progress = False,
        on_file: Callable[[str], None] | None = None,
    ) -> SyncReport:
        """Keep the memory in step with a folder: read new and changed files, forget those that are gone.

        A file that was moved keeps its blocks, and is not read again. Its `origin` is the new path, its `source` the
        name that it was read under: the path from the folder on. Files of the folder that `read` read are not touched.
        A file changed if its content did; it is looked into where its size or time is another one. `include` and
        `exclude` are patterns as in a .gitignore, and so is what `gitignore` obeys. What they leave out counts as gone.
        Links are not followed. A file without text is passed over. One that cannot be opened, or that no parser has the
        time, RAM or package for, stays as it was read.

        Where more than half of the folder's files would be forgotten, it may be the wrong one, or one that is not
        mounted. Then this raises MostFilesGoneError and does nothing, unless `forget_all`. That also lets a folder
        that is not there be forgotten.

        `tags` are for what is read now. `dry_run` says what would be done, and does nothing. `on_file` is called with
        the path of each file before it is read. An interruption, or the death of the process, loses nothing: the next
        `sync` goes on. Raises OSError where the folder cannot be listed, and what `read` raises.
        """
        choice = Choice(_several(include), _several(exclude), gitignore)
        if dry_run:
            return planned(self.memory, folder, choice, forget_all=forget_all)
        self._reader.require_writable()
        tags = names_of(tags)
        require_tags(tags)
        require_users(tags)
        one = _Pass(self.memory, self._reader, tags, progress, on_file)
        return one.run(from_home(folder).resolve(), choice, forget_all=forget_all)


def _several(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else list(names)


class _Pass:
    """One sync. Each of its steps leaves a memory from which the next sync goes on."""

    def __init__(
        self,
        memory: Memory,
        reader: Reader,
        tags: Sequence[str],
        progress: Progress,
        on_file: Callable[[str], None] | None,
    ) -> None:
        self._memory, self._reader, self._tags, self._progress = memory, reader, tags, progress
        self._on_file = on_file if on_file is not None else lambda path: None
        self._forgotten, self._read = 0, ReadReport(0, 0, 0.0)
        self._passed_over: dict[str, str] = {}

    def run(self, folder: Path, choice: Choice, *, forget_all: bool) -> SyncReport:
        started = time.monotonic()
        found, files = plan(self._memory, folder, choice, forget_all=forget_all)
        if not forget_all:
            found.require_most_there()
        try:
            for old, new in found.moved:
                for blocks in found.held[old].blocks.values():
                    for block in blocks:
                        self._memory.core.blocks.add_tags(block, [origin_tag(new)])
            for path in found.gone:
                self._forget(found.held[path].all())
            arriving, ready = {*found.new, *found.changed}, {}
            for path in found.changed:
                if found.held[path].earlier & arriving:  # before another file is read under an earlier name of this one
                    ready[path] = self._texts(found, path, files[path])
                    if ready[path] is not None:
                        self._forget(found.held.pop(path).all())
            for path in sorted(arriving):
                texts = ready.pop(path) if path in ready else self._texts(found, path, files[path])
                if texts is not None:
                    self._read_file(found, path, texts)
        finally:
            with contextlib.suppress(EverlongError):  # without it, the next pass looks into more files
                store_table(self._memory.core, found.table)
        read = dataclasses.replace(self._read, seconds=time.monotonic() - started)
        for path in found.unreadable:
            for listed in (found.new, found.changed):
                if path in listed:
                    listed.remove(path)
        return report_of(found, self._passed_over, read, self._forgotten)

    def _texts(self, found: Plan, path: str, file: Path) -> FileTexts | None:
        """Return the texts of a file; None where there are none, or they cannot be read now: then what is held stays.

        They are of the bytes whose digest the table has.
        """
        self._on_file(found.name(path))
        try:
            with opened(file, follow_links=False) as descriptor:
                if too_large(os.fstat(descriptor).st_size):
                    return file_texts(file, descriptor=descriptor)  # which refuses it
                with snapshot(descriptor, LIMITS.file_bytes) as (copy, digest):
                    if digest != found.table[path].digest:  # it changed since the folder was looked through
                        found.table[path] = FileState(os.fstat(copy).st_size, -1, digest)
                    texts = file_texts(file, descriptor=copy)
        except NoTextError as error:
            why = found.unreadable[path] = str(error).removeprefix(f"{file} ")
            found.table[path] = dataclasses.replace(found.table[path], why=why)
            self._forget(found.held.pop(path).all() if path in found.held else [])
        except UnreadableFileError as error:
            found.unreadable[path] = str(error).removeprefix(f"{file} ")
        except OSError as error:
            found.unreadable[path] = error.strerror or str(error)
        else:
            return texts
        return None

    def _read_file(self, found: Plan, path: str, texts: FileTexts) -> None:
        seen, held = found.table[path], found.held.get(path)
        if held is not None and held.earlier:
            self._forget(held.all())
            held = None
        name, own = found.name(path), (content_tag(seen.digest),)
        if held is not None and set(held.blocks) != {seen.digest}:
            kept = self._unchanged(texts, name, path, seen.digest, held)
            self._forget([block for block in held.all() if block not in kept])
        flags = {"again": False, "more": False, "special_tokens": False}
        read = self._reader.read(texts, name, path, self._tags, None, self._progress, own=own, **flags)
        if read.already > 0:  # `read` had read it under the same name: from now on it is the folder's
            for info in self._memory.core.blocks.infos(tag=origin_tag(path)):
                self._memory.core.blocks.add_tags(info.id, own)
        elif read.tokens + read.resumed_tokens == 0:
            found.table[path] = dataclasses.replace(seen, why=EMPTY)
        self._read += read
        self._passed_over.update({f"{path}: {part}": why for part, why in texts.passed_over})

    def _unchanged(self, texts: FileTexts, name: str, path: str, digest: str, held: SyncedFile) -> set[int]:
        """Return the blocks of a file that changed behind them, which stay.

        Not those that the file had moved with, or that must bear again what the file was once, or other tags or times.
        """
        if len(texts.texts) != 1:
            return self._known(texts, name, path, digest, held)
        told = texts.texts[0].happened
        times = set() if told is None else {happened_tag(told)}
        infos = sorted(map(self._memory.core.blocks.info, held.all()), key=lambda info: (info.stream, info.begin))

        def stays(info: _core.BlockInfo) -> bool:
            same = times == {tag for tag in info.tags if tag.startswith(_core.HAPPENED_TAG)}
            if not same or _was_left(info, digest):
                return False
            return info.source == name and set(split_reserved_tags(info.tags)[0]) == set(self._tags)

        # Until the rest is read, they are of no state of the file: it may become again what it was.
        own = [content_tag(f"to {digest}")]
        blocks = itertools.takewhile(stays, infos)
        return set(self._reader.keep_beginning(texts.texts[0], name, path, self._tags, blocks, own))

    def _known(self, texts: FileTexts, name: str, path: str, digest: str, held: SyncedFile) -> set[int]:
        """Return the blocks of those texts of a file, as of mails, that are still at their places in it."""
        places: dict[str | None, set[str]] = {}
        for one in texts.texts:
            mark = text_tag(one.pieces, name, path, self._tags, special_tokens=False, happened=one.happened)
            places.setdefault(mark, {""}).update(place for _, place in one.places)
        kept = set()
        for info in map(self._memory.core.blocks.info, held.all()):
            mark = next((tag for tag in info.tags if tag in places), None)
            if mark is not None and place_in(info.tags, 0, 1) in places[mark] and not _was_left(info, digest):
                self._memory.core.blocks.add_tags(info.id, [content_tag(f"to {digest}")])
                kept.add(info.id)
        return kept

    def _forget(self, blocks: Sequence[int]) -> None:
        self._forgotten += self._memory.forget(blocks) if blocks else 0
