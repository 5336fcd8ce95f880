"""The files below a folder that are to be read: without what .gitignore, or the user, leaves out."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import stat
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from everlong.files.document import UnreadableFileError

if TYPE_CHECKING:
    import pathspec

_IGNORE = ".gitignore"


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which files of a folder are meant, by patterns as in a .gitignore."""

    include: Sequence[str] = ()  # only these; () for all
    exclude: Sequence[str] = ()  # none of these
    gitignore: bool = True  # none that a .gitignore names


@dataclasses.dataclass(frozen=True)
class File:
    """A file below a folder, as it was when the folder was looked through."""

    path: str  # from the folder on, with /
    size: int
    time: int  # of its last change, in ns since 1970


@dataclasses.dataclass(frozen=True)
class Listing:
    """What a folder holds."""

    files: tuple[File, ...]  # in order of their paths
    unreadable: dict[str, str]  # folders and files that could not be looked at: path, and why


def listed(folder: str | os.PathLike[str], choice: Choice, *, without: Sequence[str] = ()) -> Listing:
    """Return the files below a folder. Links are not followed; .git, and the paths of `without`, are left out.

    OSError where the folder itself cannot be listed.
    """
    walk = _Walk(pathlib.Path(folder), choice, {os.path.realpath(path) for path in without})
    files = sorted(walk.files_below("", []), key=lambda file: file.path)
    return Listing(tuple(files), walk.unreadable)


class _Walk:
    def __init__(self, folder: pathlib.Path, choice: Choice, without: set[str]) -> None:
        self._folder, self._without = folder, without
        self._include, self._exclude = _spec(choice.include), _spec(choice.exclude)
        self._gitignore = choice.gitignore
        self.unreadable: dict[str, str] = {}

    def files_below(self, below: str, ignoring: list[tuple[str, pathspec.GitIgnoreSpec]]) -> Iterator[File]:
        """Yield the files below a folder. `ignoring`: folders above with a .gitignore, outermost first."""
        try:
            entries = sorted(os.scandir(self._folder / below), key=lambda entry: entry.name)
        except OSError as error:
            if not below:
                raise
            self.unreadable[below] = error.strerror or str(error)
            return
        if self._gitignore and any(entry.name == _IGNORE for entry in entries):
            ignoring = [*ignoring, (below, self._patterns_in(below))]
        for entry in entries:
            path = below + entry.name
            try:
                about = entry.stat(follow_symlinks=False)
            except OSError as error:
                self.unreadable[path] = error.strerror or str(error)
                continue
            if stat.S_ISDIR(about.st_mode):
                gone = entry.name == ".git" or os.path.realpath(entry.path) in self._without
                if not gone and not self._is_left_out(f"{path}/", ignoring):
                    yield from self.files_below(f"{path}/", ignoring)
            elif stat.S_ISREG(about.st_mode) and entry.name != _IGNORE and self._is_meant(path, ignoring):
                yield File(path, about.st_size, about.st_mtime_ns)

    def _patterns_in(self, below: str) -> pathspec.GitIgnoreSpec:
        try:
            text = (self._folder / below / _IGNORE).read_text("utf-8", "replace")
        except OSError as error:
            self.unreadable[below + _IGNORE] = error.strerror or str(error)
            text = ""
        return _made(text.splitlines())

    def _is_meant(self, path: str, ignoring: Sequence[tuple[str, pathspec.GitIgnoreSpec]]) -> bool:
        return not self._is_left_out(path, ignoring) and (self._include is None or self._include.match_file(path))

    def _is_left_out(self, path: str, ignoring: Sequence[tuple[str, pathspec.GitIgnoreSpec]]) -> bool:
        """The innermost .gitignore that names a path decides."""
        if self._exclude is not None and self._exclude.match_file(path):
            return True
        for below, patterns in reversed(ignoring):
            named = patterns.check_file(path.removeprefix(below)).include
            if named is not None:
                return named
        return False


def _spec(patterns: Sequence[str]) -> pathspec.GitIgnoreSpec | None:
    return _made(patterns) if patterns else None


def _made(patterns: Sequence[str]) -> pathspec.GitIgnoreSpec:
    try:
        import pathspec
    except ImportError:
        raise ImportError(
            "patterns of files, as in .gitignore, need the package pathspec: pip install 'everlong[files]'",
            name="pathspec",
        ) from None
    try:
        return pathspec.GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise UnreadableFileError(f"the patterns {list(patterns)} cannot be read: {error}") from None
