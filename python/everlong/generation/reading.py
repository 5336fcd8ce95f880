"""Reads texts into a frame: a text under its names, and the ids of another memory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

import numpy as np

import everlong._core as _core
from everlong.errors import EverlongError, MemoryIOError, ReadOnlyMemoryError
from everlong.frame.archive import nowhere
from everlong.frame.frame import Frame
from everlong.generation.file_input import FileText, FileTexts, file_texts
from everlong.generation.progress import Progress
from everlong.generation.read_pieces import read_pieces
from everlong.generation.rebuild import rebuild
from everlong.memory import Memory
from everlong.memory.origins import happened_tag, origin_of, origin_tag, require_users, text_tag
from everlong.memory.places import Places
from everlong.memory.readings import Readings
from everlong.memory.retention import retire
from everlong.memory.text_input import pieces_of
from everlong.memory.where import Time, names_of, require_tags, seconds
from everlong.text import notebook_html
from everlong.text.encoding import encode
from everlong.text.prompt import start_ids


@dataclasses.dataclass(frozen=True)
class ReadReport:
    """What a `read` did. All of it is durable."""

    tokens: int  # tokens read now
    blocks: int  # blocks archived now
    seconds: float
    resumed_tokens: int = 0  # tokens that the memory had from an earlier reading that was cut short
    already: int = 0  # tokens of a text that was read before under the same names; nothing is stored twice
    # Parts of a file that hold no text or cannot be read, as a picture in an archive: name, and why.
    passed_over: tuple[tuple[str, str], ...] = ()
    # What was assumed of a file's texts, as an encoding that was guessed: name within the file, and what.
    details: tuple[tuple[str, str], ...] = ()
    # Sources that were forgotten to make room, or for their age (`archive.max_bytes`, `archive.keep_for`).
    let_go: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what is not nothing."""
        return notebook_html.table((name, value) for name, value in vars(self).items() if value)

    def __add__(self, other: ReadReport) -> ReadReport:
        """Return what both did."""
        return ReadReport(
            *(getattr(self, field.name) + getattr(other, field.name) for field in dataclasses.fields(ReadReport))
        )


class Reader:
    """Reads into one frame. For the frame's thread alone."""

    def __init__(self, frame: Frame, tokenizer: Any, text_is_read: Callable[[], None]) -> None:
        """`text_is_read` is called when a text is about to be read."""
        self._frame, self._tokenizer, self._text_is_read = frame, tokenizer, text_is_read
        self._readings = Readings(frame.memory.core, frame.os.stream, len(start_ids(tokenizer)))

    def read(
        self,
        text: str | os.PathLike[str] | TextIO | Iterable[str] | FileTexts,
        source: str,
        origin: str | os.PathLike[str] | None,
        tags: str | Sequence[str],
        happened: Time | None,
        progress: Progress,
        *,
        again: bool,
        more: bool,
        special_tokens: bool,
        own: tuple[str, ...] = (),
    ) -> ReadReport:
        """Do as `MemoryModel.read`. `own`: further tags of everlong's own for its blocks."""
        self.require_writable()
        if isinstance(text, os.PathLike):
            text = file_texts(text)
        given = text if isinstance(text, FileTexts) else FileTexts([FileText(*pieces_of(text))])
        tags = tuple(names_of(tags))
        require_tags(tags)
        require_users(tags)
        when, started, report = seconds(happened), time.monotonic(), ReadReport(0, 0, 0.0)
        for number, one in enumerate(given.texts, 1):
            name, place = names_of([source or one.name, one.path if origin is None else origin_of(origin)])
            told = one.happened if when is None else when
            flags = {"again": again, "more": more or number < len(given.texts), "special_tokens": special_tokens}
            report += self._read(one, name, place, tags, told, progress, own, **flags)
        took = time.monotonic() - started
        return dataclasses.replace(report, seconds=took, passed_over=given.passed_over, details=given.details)

    def _read(
        self,
        text: FileText,
        source: str,
        origin: str,
        tags: tuple[str, ...],
        happened: float | None,
        progress: Progress,
        own: tuple[str, ...],
        *,
        again: bool,
        more: bool,
        special_tokens: bool,
    ) -> ReadReport:
        pieces = text.pieces
        mark = text_tag(pieces, source, origin, tags, special_tokens=special_tokens, happened=happened)
        frame, readings, archive = self._frame, self._readings, self._frame.archive
        frame.end_of_text()  # what stood before belongs to another source
        if frame.os.recalled_tokens > 0:  # it came back for a question, and must not colour the text that is read
            frame.clear_recalled()
        first, finished, blocks = frame.text_begin, False, archive.blocks
        places = Places(text.places, first)
        own = (
            *([] if happened is None else [happened_tag(happened)]),
            *([origin_tag(origin)] if origin else []),
            *([mark] if mark is not None else []),
            *own,
        )
        with self._naming_stored_tokens(first):
            readings.begin(source, first, mark, again=again)
            archive.source, archive.tags, archive.placed = source, (*tags, *own), places.tags
            self._text_is_read()
            how: dict[str, Any] = {"special_tokens": special_tokens, "progress": progress}
            try:
                tokens = read_pieces(frame, readings, self._tokenizer, pieces, source, places, **how)
                frame.end_of_text()
                finished = True
            except BaseException:
                with contextlib.suppress(EverlongError):  # the first error is the one to tell
                    frame.end_of_text()
                raise
            finally:
                archive.source, archive.tags, archive.placed = "", (), nowhere
                # What is noted of a text that was not finished says so already: a full disk takes no more of it.
                with contextlib.nullcontext() if finished else contextlib.suppress(MemoryIOError):
                    readings.end(frame.os.archived_until, finished=finished, more=more)
            limits = frame.config.archive
            let_go = retire(frame.memory, limits.max_bytes, limits.keep_for)
            frame.checkpoint()
        known = (readings.resumed, readings.already)
        return ReadReport(tokens, archive.blocks - blocks, 0.0, *known, let_go=let_go)

    def keep_beginning(
        self,
        text: FileText,
        source: str,
        origin: str,
        tags: Sequence[str],
        blocks: Iterable[_core.BlockInfo],
        own: Sequence[str],
    ) -> list[int]:
        """Let the next reading of a text go on behind those of `blocks` that hold its beginning. Return their ids.

        `blocks` are in order of the stream, from an earlier state of the text, and under the same names. `own`: what
        those get as further tags of everlong's own.
        """
        ids = encode(self._tokenizer, "".join(text.pieces)).numpy()
        core, kept, at = self._frame.memory.core, [], 0
        for info in blocks:
            held = core.blocks.token_ids(info.stream, max(info.begin, len(start_ids(self._tokenizer))), info.end)
            if info.stream != self._frame.os.stream or not np.array_equal(held, ids[at : at + len(held)]):
                break
            kept.append(info.id)
            at += len(held)
        mark = text_tag(text.pieces, source, origin, tags, special_tokens=False, happened=text.happened)
        for block in kept:
            core.blocks.add_tags(block, [*own, *([] if mark is None else [mark])])
        return kept

    def rebuild(self, old: str | pathlib.Path | Memory, *, progress: Progress) -> ReadReport:
        """Do as `MemoryModel.rebuild`."""
        self.require_writable()
        started, archived = time.monotonic(), self._frame.archive.blocks
        self._text_is_read()
        with contextlib.ExitStack() as opened:
            if not isinstance(old, Memory):
                old = opened.enter_context(Memory.open(old, read_only=True))
            tokens, there = rebuild(self._frame, old, start_ids(self._tokenizer), progress=progress)
        blocks = self._frame.archive.blocks - archived
        return ReadReport(tokens, blocks, time.monotonic() - started, there)

    @contextlib.contextmanager
    def _naming_stored_tokens(self, first: int) -> Iterator[None]:
        """Have a MemoryIOError say what the memory keeps of the text whose tokens begin at `first`, and what to do."""
        try:
            yield
        except MemoryIOError as error:
            memory, stream = self._frame.memory, self._frame.os.stream
            if memory.is_gone:
                raise
            pages = memory.core.blocks.pages()
            kept = sum(page.end - page.begin for page in pages if page.stream == stream and page.begin >= first)
            raise MemoryIOError(
                f"{error}. The memory keeps {kept:,} tokens of this text. Where the disk is full, make room: "
                "memory.forget and memory.compact work on a full disk. Then read the same text under the same name: it "
                "goes on where it stopped"
            ) from error

    def require_writable(self) -> None:
        if self._frame.memory.core.read_only:
            raise ReadOnlyMemoryError("the memory was opened for reading: no text can be read into it")
