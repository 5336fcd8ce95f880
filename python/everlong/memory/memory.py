"""A memory: the blocks of one conversation or library, and their index, in RAM or in one folder."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import logging
import numbers
import os
import reprlib
import tempfile
import threading
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import everlong._core as _core
from everlong.errors import CorruptMemoryError, EverlongError, MemoryBusyError, MemoryGoneWarning, MemoryNotFoundError
from everlong.graph import MemoryGraph
from everlong.memory.detail_tensors import detail_bytes
from everlong.memory.kept_tensors import kept_bytes
from everlong.memory.overlapping_vectors import (
    drop_vectors,
    drop_what_was_left,
    note_dropped,
    number_in,
    overlapping_blocks,
)
from everlong.memory.recoding import RecodingPlan, check_room, named, plan, recode
from everlong.memory.records import Block, MemoryStats, VerifyReport, block_of
from everlong.memory.where import Time, Where, require_where, seconds
from everlong.paths import absolute
from everlong.text import notebook_html

if TYPE_CHECKING:
    from everlong.memory.fingerprint import Fingerprint

_LOGGER = logging.getLogger("everlong")

MEMORY_ID = "id"  # attribute of the manifest
_COMPACTED = "compacted"  # attribute: how many forgettings were counted when `compact` last removed what they left
_MOST_OF_MANIFEST = 64 << 20  # bytes


class Memory:
    """What was archived, without a model: `Memory.open(path)`. A context manager that closes it.

    One process writes at a time, any number read. Threads may read beside each other and beside one that writes.
    """

    def __init__(self, core: _core.Memory, path: str | None) -> None:
        self.core = core
        self.path = path
        self._closed = False
        self._naming = threading.Lock()
        self._process = os.getpid()
        self._writer: weakref.ref[object] | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None,
        *,
        create: _core.Manifest | None = None,
        read_only: bool = False,
        host_bytes: int | None = None,
    ) -> Memory:
        """Open the memory in folder `path` (~ is the home folder). With `create`, make one where there is none.

        `path=None` with `create` keeps all in RAM. `host_bytes` is how much may be in RAM, by default half of what is
        free: indexes, catalog and payload. A memory in RAM holds all of them there, and refuses more (CapacityError).
        For a folder, payload is a cache. It gets what is left, but at least an eighth of `host_bytes`. Raises
        MemoryNotFoundError, CorruptMemoryError, MemoryBusyError, NewerFormatError.
        """
        folder = None if path is None else absolute(path)
        if folder is None:
            if create is None:
                raise ValueError("path=None makes a new memory in RAM: it needs create=")
            return cls(_core.Memory.create(None, create, host_bytes), None)
        if create is not None and not cls.exists(folder):
            return cls(_core.Memory.create(folder, create, host_bytes), folder)
        memory = cls(_core.Memory.open(folder, read_only, host_bytes), folder)
        if not read_only:
            memory._end_what_was_cut_short()
        return memory

    @staticmethod
    def exists(path: str | os.PathLike[str]) -> bool:
        """Return whether there is a memory in folder `path`, whole or damaged."""
        return _core.has_file(absolute(path), "manifest.json")

    @property
    def id(self) -> str:
        """As `id_of`."""
        return self.core.manifest().attributes.get(MEMORY_ID, "")

    def give_id(self) -> str:
        """Give a memory of an earlier release an id. Return the one that it has then. Errors as of a change."""
        with self._naming:
            if not self.id:
                self.core.set_attribute(MEMORY_ID, uuid.uuid4().hex)
            return self.id

    @staticmethod
    def id_of(path: str | os.PathLike[str]) -> str:
        """Return the id with which the memory in folder `path` was made; "" for one of an earlier release.

        Another memory has another one, also where it takes the folder of one that was removed. A fork and an import
        keep it. Errors as in `open`; the memory is not opened.
        """
        folder = absolute(path)
        if not _core.has_file(folder, "manifest.json"):
            raise MemoryNotFoundError(f"there is no memory in {folder}")
        try:
            found = json.loads(_core.read_file(folder, "manifest.json", _MOST_OF_MANIFEST))["attributes"].get(
                MEMORY_ID, ""
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise CorruptMemoryError(f"the manifest of {folder} cannot be read") from None
        return str(found)

    @classmethod
    def import_file(cls, file: str | os.PathLike[str], path: str | os.PathLike[str] | None) -> Memory:
        """Make a new memory in folder `path` (None: in RAM) from all that `export` wrote into `file`."""
        folder = None if path is None else absolute(path)
        memory = cls(_core.Memory.import_file(absolute(file), folder), folder)
        memory._end_what_was_cut_short(imported=True)
        return memory

    @staticmethod
    def repair(path: str | os.PathLike[str]) -> VerifyReport:
        """Do as `verify(repair=True)`, for a memory that is too damaged to be opened."""
        return VerifyReport.of(_core.Memory.repair(absolute(path)))

    def begin_writing(self, writer: object) -> None:
        """Let `writer` alone go on with the stream, until `end_writing`. MemoryBusyError if another does.

        Where this memory was opened for reading nobody writes, and any number may ask.
        """
        if self.core.read_only:
            return
        there = None if self._writer is None else self._writer()
        if there is not None and there is not writer:
            raise MemoryBusyError("another MemoryModel writes to this open memory: close that one first")
        self._writer = weakref.ref(writer)

    def end_writing(self, writer: object) -> None:
        """End the writing of `writer`, so that another may go on with the stream."""
        if self._writer is not None and self._writer() is writer:
            self._writer = None

    def check(self, expected: Fingerprint) -> None:
        """Raise ModelMismatchError, naming what differs, unless this memory belongs to that model."""
        _core.check_fingerprint(
            self.core.manifest(), weights=expected.weights, rope=expected.rope, tokenizer=expected.tokenizer
        )

    def blocks(
        self,
        source: str | None = None,
        *,
        tag: str | None = None,
        after: Time | None = None,
        before: Time | None = None,
        where: Where | None = None,
        behind: int = 0,
        limit: int | None = None,
    ) -> list[Block]:
        """Return blocks in order of archiving: all, or those of one source, with one tag, archived in [after, before).

        `where` says the same as a question's does, in place of those. Without a role it leaves none out. A long list
        is read page by page: at most `limit` blocks, with ids above `behind`, the last one of the page before. A page
        of all blocks costs what it returns, whatever the memory holds. So does one of a source, but for a look at the
        index. ValueError for a limit below 1.
        """
        if where is not None:
            require_where(where)
            if (source, tag, after, before) != (None, None, None, None):
                raise ValueError("name either where, or source, tag, after and before")
            return list(map(block_of, where.blocks(self.core, behind=behind, limit=limit)))
        _require_one_name(source=source, tag=tag)
        since, until = seconds(after), seconds(before)
        infos = self.core.blocks.infos(source=source, tag=tag, since=since, before=until, behind=behind, limit=limit)
        return list(map(block_of, infos))

    def forget(
        self,
        block_ids: Iterable[int] | None = None,
        *,
        source: str | None = None,
        before: Time | None = None,
        where: Where | None = None,
    ) -> int:
        """Forget blocks by id, or those of a source, or older ones, or those of `where`. Return how many.

        They are gone from every later read and search, and `forgotten_generation` rises. A MemoryModel over this memory
        lets go of them before its next call. `compact` removes their bytes, and all that came of them, from the folder.
        On a full disk payload is freed at once, and a message says how much. ValueError for a `where` that leaves
        nothing out: to forget everything, give the ids of `blocks()`.
        """
        by_name = source is not None or before is not None
        if (block_ids is not None) + by_name + (where is not None) != 1:
            raise ValueError("name either block_ids, or source and/or before, or where")
        if isinstance(where, Where) and not where.chooses:
            raise ValueError("where leaves nothing out: to forget everything, name the ids of blocks()")
        if block_ids is not None:
            return self._forget(list(dict.fromkeys(_ids_of(block_ids))))
        ids: list[int] | None = None
        while True:
            found = self.blocks(where=where) if where is not None else self.blocks(source, before=before)
            earlier, ids = ids, [block.id for block in found]
            try:
                return self._forget(ids)
            except MemoryNotFoundError:  # another thread forgot some of them: the rest is left
                if ids == earlier:
                    raise

    def _forget(self, ids: Sequence[int]) -> int:
        """Forget these blocks, and drop what came of them. MemoryNotFoundError, and nothing, if one is not there."""
        if not ids:
            return 0
        beside = overlapping_blocks(self.core, set(ids))
        freed = self.core.blocks.forget(ids)
        forgettings = self.core.forgettings()
        if freed > 0:
            _LOGGER.warning("the disk was full: forgetting gave back %s bytes at once", f"{freed:,}")

        def drop_theirs() -> None:
            drop_vectors(self.core, beside)
            note_dropped(self.core, forgettings)

        for drop in (drop_theirs, self._drop_from_frame):
            try:
                drop()
            except EverlongError as error:  # they are forgotten: nothing of it comes back, and compact does it again
                _LOGGER.warning("some of what came of it is in the folder until compact: %s", error)
        return len(ids)

    def flush(self) -> None:
        """Wait until all that was archived is durable. Raise what went wrong with a block since the last flush."""
        self.core.upkeep.flush()

    def compact(
        self,
        codec: str | None = None,
        *,
        tables: bytes | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Remove what forgotten blocks left in every file. Return the bytes given back. It works on a full disk.

        Where it fails, the blocks stay forgotten, and the next call goes on.

        With a `codec`, code every block anew first, one after the other; `recoding` says what that takes. It may be
        stopped at any time: the memory is whole, and the same call goes on. What is archived later has the memory's own
        codec. CapacityError where the disk has too little room. The codec "transform" needs `tables`, once:
        `everlong.codecs.transform.tables_for` fits them to the model. `told` gets the bytes of each block that is
        done.
        """
        if codec is None:
            forgettings = self.core.forgettings()
            try:
                self._drop_forgotten()
            except EverlongError:  # a full disk: compacting makes room
                freed = self.core.upkeep.compact()
                self._drop_forgotten()
                freed += self.core.upkeep.compact()
            else:
                freed = self.core.upkeep.compact()
            with contextlib.suppress(EverlongError):  # a full disk: who asks compacts once more
                if forgettings != self._compacted:
                    self.core.set_attribute(_COMPACTED, str(forgettings))
            return freed
        self._drop_forgotten()
        if tables is not None and codec == "transform":
            self.core.upkeep.put_transform(tables)
        work = self.recoding(codec)
        if self.path is not None:
            check_room(work, self.path)
        return recode(self.core, work, progress)

    def recoding(self, codec: str) -> RecodingPlan:
        """Return what `compact(codec)` would do: which blocks, their bytes before and after, the room it needs."""
        return plan(self.core, named(self.core, codec))

    def verify(self, repair: bool = False) -> VerifyReport:
        """Read all of it back against every checksum. `repair` drops blocks with damage and keeps what is whole.

        Blocks come and go meanwhile, and that is no damage. Only a repair that has found some keeps others out.
        """
        report = VerifyReport.of(self.core.upkeep.verify(repair))
        if report.dropped:
            self._drop_from_frame()
        return report

    def _drop_from_frame(self) -> None:
        """Remove forgotten tokens from what a frame left here."""
        if "frame" in self.core.manifest().attributes:  # else nothing needs torch
            from everlong.memory.frame_file import drop_forgotten

            drop_forgotten(self.core)

    def _drop_forgotten(self) -> None:
        """Remove what came of forgotten blocks from all that the memory keeps beside its blocks."""
        from everlong.memory.synced import drop_forgotten

        self._drop_from_frame()
        drop_what_was_left(self.core)
        drop_forgotten(self.core)

    def _end_what_was_cut_short(self, *, imported: bool = False) -> None:
        """Drop vectors that a forgetting which was cut short has left. Where that fails, `compact` does it.

        The forgettings of an import are counted anew. What was noted of the memory that it came from tells nothing.
        """
        try:
            if self._compacted > self.core.forgettings():
                self.core.set_attribute(_COMPACTED, "0")
            drop_what_was_left(self.core, every=imported)
            if imported and '"forgettings"' in self.core.manifest().attributes.get("frame", ""):
                self._drop_from_frame()
        except EverlongError as error:
            _LOGGER.warning("some of what came of forgotten text is in the folder until compact: %s", error)

    @property
    def _compacted(self) -> int:
        """How many forgettings were counted when `compact` last removed what they left."""
        return number_in(self.core, _COMPACTED)

    def fork(self, path: str | os.PathLike[str]) -> Memory:
        """Make a second memory in folder `path` that begins like this one. Neither sees the other's changes.

        It has nothing of what was forgotten: where this one was not compacted since, the fork is. On a full disk a
        message says that the fork is to be compacted later.
        """
        if not self.core.read_only:
            self._drop_forgotten()
        self.core.upkeep.fork(absolute(path))
        fork = Memory.open(path)
        if fork._compacted != fork.core.forgettings():
            try:
                fork.compact()
            except EverlongError as error:
                _LOGGER.warning("some of what was forgotten is in the fork until it is compacted: %s", error)
        return fork

    def export(self, file: str | os.PathLike[str]) -> None:
        """Write all of it to one file, which must not exist. `import_file` reads it."""
        target = absolute(file)
        if not self.core.read_only:
            self._drop_forgotten()
        elif self._compacted != self.core.forgettings() and not os.path.lexists(target):
            # A reader drops nothing here. A fork shares the payload, and drops what came of forgotten blocks.
            with tempfile.TemporaryDirectory(prefix=".everlong-", dir=os.path.dirname(target)) as beside:
                self.core.upkeep.fork(os.path.join(beside, "fork"))
                with Memory.open(os.path.join(beside, "fork")) as fork:
                    fork.export(target)
            return
        self.core.upkeep.export_file(target)

    def stats(self) -> MemoryStats:
        """Return how much it holds, from the catalog. No payload is read."""
        core = self.core.upkeep.stats()
        fields = [field.name for field in dataclasses.fields(MemoryStats)]
        carried = {"detail_bytes": detail_bytes(core.tensor_bytes), "kept_bytes": kept_bytes(core.tensor_bytes)}
        counted = {name: getattr(core, name) for name in fields if name not in carried}
        return MemoryStats(**counted, **carried)

    def report(self, trace: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return one page of HTML that needs nothing else: sources, times, sizes, topics, health.

        With a `trace` of `MemoryModel.trace`, also what questions found. What comes from the memory is text, not HTML.
        """
        from everlong.memory.report import page_of

        return page_of(self, trace)

    @property
    def graph(self) -> MemoryGraph:
        """Its graph: blocks in time, topics over them. Empty where none was grown (`archive.graph`)."""
        return MemoryGraph(self.core)

    def close(self) -> None:
        """Keep the indexes for the next opener, release files and lock. Closing twice does nothing.

        Raises what went wrong with a block since the last flush, once all is released. A fork of the process that
        opened it keeps nothing of it, and takes nothing from that process. Where the folder was removed or replaced
        meanwhile, nothing is written, and MemoryGoneWarning says so.
        """
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._process:
            self.core.close()
            return
        try:
            self.log_messages()
            if self.is_gone:
                warnings.warn(
                    f"the folder of memory '{self.path}' was removed or replaced while it was open: close wrote "
                    "nothing there; if it was moved, open it where it is now",
                    MemoryGoneWarning,
                    stacklevel=2,
                )
                return
            self.core.upkeep.flush()  # before the indexes are saved: a block that is lost cannot be made again
            try:
                self.core.index.save()
            except EverlongError as error:  # they can be made again
                _LOGGER.warning("indexes were not saved: %s", error)
        finally:
            self.core.close()

    @property
    def forgotten_generation(self) -> int:
        """How often something was forgotten here: it rises with each forgetting, also by another process.

        Whoever keeps what came of this memory's text compares it before that is used again. It is read from the
        catalog each time, costs one lookup, and never falls. A repair that drops blocks counts. A fork goes on from
        its origin's number; an import begins at 0.
        """
        return self.core.forgettings()

    @property
    def is_gone(self) -> bool:
        """Whether its folder was removed or replaced since it was opened for writing."""
        return self.core.is_gone

    def log_messages(self) -> None:
        """Log what was wrong with saved indexes, which were then made anew, and why a GPU did not search."""
        for message in self.core.index.take_messages():
            _LOGGER.warning(message)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: how much it holds, and its newest sources."""
        if self._closed:
            return notebook_html.paragraph("a memory that was closed")
        stats, tokens = self.stats(), collections.Counter[str]()
        for info in reversed(self.core.blocks.infos()):
            tokens[info.source or notebook_html.CONVERSATION] += info.end - info.begin
        head = f"{self.path or 'memory in RAM'}: {stats.tokens:,} tokens in {stats.blocks:,} blocks"
        return notebook_html.paragraph(head) + notebook_html.table(tokens.items())

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ids_of(block_ids: Iterable[int]) -> list[int]:
    """Return ids of blocks. TypeError for what is none: a name, a block, a single id."""
    if isinstance(block_ids, str | bytes):
        raise TypeError(f"block_ids is {block_ids!r}: expected ids of blocks(); source={block_ids!r} forgets a source")
    if isinstance(block_ids, Where):
        raise TypeError("block_ids is a Where: forget(where=...) takes it")
    if isinstance(block_ids, Block) or not isinstance(block_ids, Iterable):
        raise TypeError(f"block_ids is {reprlib.repr(block_ids)}: expected several ids of blocks(), such as [block.id]")
    ids: list[int] = []
    for one in block_ids:
        if isinstance(one, bool) or not isinstance(one, numbers.Integral) or not 0 <= one < 1 << 63:
            hint = ": give its id" if isinstance(one, Block) else ""
            raise TypeError(f"block_ids has {reprlib.repr(one)}, expected an id of blocks(), a whole number{hint}")
        ids.append(int(one))
    return ids


def _require_one_name(**names: object) -> None:
    """Raise TypeError for a source or tag that is no str."""
    for field, name in names.items():
        if name is not None and not isinstance(name, str):
            several = {"source": "where=Where(source=[...])", "tag": "where=Where(tags=[...])"}[field]
            raise TypeError(f"{field} is {name!r}, expected one name, a str; {several} takes several")
