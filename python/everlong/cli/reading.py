"""What `everlong read` does with its files: which there are, what was read of each, and what was passed over."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from everlong.cli.app import print_json
from everlong.text.terminal import print_escaped

if TYPE_CHECKING:
    from everlong.generation.file_input import FileTexts
    from everlong.generation.memory_model import MemoryModel
    from everlong.generation.reading import ReadReport


def files_in(values: Iterable[Path], memory: Path) -> list[Path]:
    """Return files as they are given, and in place of a folder its files, in order of their paths.

    The memory's own folder is left out. What cannot be looked at is told of.
    """
    from everlong.files.folder import Choice, listed

    found: list[Path] = []
    for path in values:
        if path.is_dir():
            listing = listed(path, Choice(), without=[str(memory)])
            for name, why in listing.unreadable.items():
                print_escaped(f"passed over: {path / name} {why}", stderr=True)
            if not listing.files:
                raise typer.BadParameter(f"folder '{path}' has no file to read")
            found += [path / one.path for one in listing.files]
        else:
            found.append(path)
    return found


class InputFile:
    """The files that can be read, each with its texts. Those that cannot are told of, and passed over."""

    def __init__(self, files: Sequence[Path]) -> None:
        """UnreadableFileError, which names the files, where none can be read: no memory is made for that."""
        from everlong.files.document import UnreadableFileError

        self.all = len(files)
        self.refused: dict[str, str] = {}
        self._found = self._read(files)
        self._next = next(self._found, None)
        if self._next is None:
            raise UnreadableFileError("\n".join(self.refused.values()))
        self._tell(list(self.refused.values()))

    def __iter__(self) -> Iterator[tuple[Path, FileTexts, bool]]:
        """Yield a file, its texts, and whether another one follows, once."""
        while self._next is not None:
            file, texts = self._next
            report = len(self.refused)
            self._next = next(self._found, None)
            self._tell(list(self.refused.values())[report:])
            yield file, texts, self._next is not None

    def _read(self, files: Sequence[Path]) -> Iterator[tuple[Path, FileTexts]]:
        from everlong.files.document import UnreadableFileError
        from everlong.generation.file_input import file_texts

        for file in files:
            try:
                yield file, file_texts(file)
            except (UnreadableFileError, OSError) as error:
                self.refused[str(file)] = str(error)

    def _tell(self, refused: Iterable[str]) -> None:
        for why in refused:
            print_escaped(f"passed over: {why}", stderr=True)


def read_files(mm: MemoryModel, files: InputFile, *, as_json: bool, **how: Any) -> None:
    """Read files one after the other, and say what was read of each, and of all."""
    reports: dict[str, Any] = {}
    tokens, parts = 0, 0
    for file, texts, more in files:
        report = mm.read(texts, more=more, progress=not as_json, **how)
        reports[str(file)] = dataclasses.asdict(report)
        tokens, parts = tokens + report.tokens, parts + len(report.passed_over)
        if not as_json:
            _print_report(file, report)
    if as_json:
        print_json(reports | {file: {"unreadable": why} for file, why in files.refused.items()})
    elif files.all > 1 or parts:
        passed = f", {len(files.refused):,} passed over" if files.refused else ""
        within = f", {parts:,} parts of files passed over" if parts else ""
        print_escaped(f"{len(reports):,} of {files.all:,} files read, {tokens:,} tokens{passed}{within}")


def _print_report(file: Path, report: ReadReport) -> None:
    rate = report.tokens / report.seconds if report.seconds > 0 else 0.0
    there = report.resumed_tokens + report.already
    known = f" after {there:,} that were there" if there else ""
    print_escaped(f"{file}: {report.tokens:,} tokens{known}, {report.blocks} blocks, {rate:,.0f} tokens/s")
    for name, why in report.passed_over:
        print_escaped(f"passed over in {file}: {name} {why}", stderr=True)
    for name, detail in report.details:
        print_escaped(f"{file}{f', {name}' if name else ''}: {detail}", stderr=True)
