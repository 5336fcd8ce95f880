"""The files below a folder that are to be read: without what .gitignore, or the user, leaves out."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import os
import stat
from collections.abc import Iterator, Sequence

from everlong.files.document import UnreadableFileError
from everlong.files.ignoring import MOST_PATTERNS, UNDECIDED, Decided, Patterns
from everlong.files.parsing import opened
from everlong.files.without_links import open_without_links

_IGNORE = ".gitignore"
_LARGEST_IGNORE = 256 << 10  # bytes
_ALL_IGNORES = 4 << 20  # bytes of all of them below one folder


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
    walk = _Walk(os.fspath(folder), choice, without)
    files = sorted(walk.files(), key=lambda file: file.path)
    return Listing(tuple(files), walk.unreadable)


class _Walk:
    def __init__(self, folder: str, choice: Choice, without: Sequence[str]) -> None:
        self._folder = os.path.realpath(folder)
        self._without: set[tuple[int, int]] = set()  # by device and number
        for path in without:
            with contextlib.suppress(OSError):  # it is not there
                self._without.add(_identity(os.stat(path)))
        self._include, self._exclude = _patterns_of(choice.include), _patterns_of(choice.exclude)
        self._gitignore = choice.gitignore
        self._ignored_bytes = 0
        self.unreadable: dict[str, str] = {}

    def files(self) -> Iterator[File]:
        """Yield the files below the folder, in no order. However deep they lie, nothing is called within itself."""
        waiting: list[tuple[str, tuple[tuple[str, Patterns], ...], Decided]] = [("", (), UNDECIDED)]
        while waiting:
            below, ignoring, included = waiting.pop()
            entries = self._entries(below)
            if self._gitignore and any(name == _IGNORE for name, _ in entries):
                ignoring = (*ignoring, (below, self._patterns_in(below, ignoring)))
            for name, about in entries:
                path = below + name
                if isinstance(about, OSError):
                    self.unreadable[path] = about.strerror or str(about)
                    continue
                if stat.S_ISDIR(about.st_mode):
                    gone = name == ".git" or _identity(about) in self._without
                    if not gone and not self._is_left_out(path, ignoring, folder=True):
                        waiting.append((f"{path}/", ignoring, self._included(path, included, folder=True)))
                elif stat.S_ISREG(about.st_mode) and name != _IGNORE:
                    meant = self._include is None or self._included(path, included, folder=False)[1]
                    if meant and not self._is_left_out(path, ignoring, folder=False):
                        yield File(path, about.st_size, about.st_mtime_ns)

    def _entries(self, below: str) -> list[tuple[str, os.stat_result | OSError]]:
        """Return the names in a folder, with what the system says of each."""
        try:
            descriptor = open_without_links(os.path.join(self._folder, below), os.O_DIRECTORY)
            try:
                found = [(entry.name, _about(entry)) for entry in os.scandir(descriptor)]
            finally:
                os.close(descriptor)
        except OSError as error:
            if not below:
                raise
            self.unreadable[below] = error.strerror or str(error)
            return []
        return sorted(found, key=lambda entry: entry[0])

    def _patterns_in(self, below: str, above: Sequence[tuple[str, Patterns]]) -> Patterns:
        """Return the patterns of a .gitignore, which is as hostile as any file. What is wrong in it leaves out nothing.

        `above`: the folders above it that have one, outermost first, with their patterns.
        """
        name = below + _IGNORE
        try:
            with opened(os.path.join(self._folder, name), follow_links=False) as found:
                data = os.pread(found, _LARGEST_IGNORE + 1, 0)
        except (OSError, UnreadableFileError) as error:
            self.unreadable[name] = getattr(error, "strerror", None) or str(error)
            return Patterns([])
        self._ignored_bytes += len(data)
        if len(data) > _LARGEST_IGNORE or self._ignored_bytes > _ALL_IGNORES:
            self.unreadable[name] = (
                f"is not obeyed: at most {_LARGEST_IGNORE:,} bytes of a {_IGNORE} are read, and {_ALL_IGNORES:,} of all"
            )
            return Patterns([])
        text = os.fsdecode(data.removeprefix(codecs.BOM_UTF8))
        found_above = sum(patterns.wild for _, patterns in above)
        patterns = Patterns(text.split("\n"), most=MOST_PATTERNS - found_above)
        if patterns.refused:
            self.unreadable[name] = (
                f"has {len(patterns.refused):,} lines that are not obeyed, the first is {patterns.refused[0][:60]!r}"
            )
        return patterns

    def _included(self, path: str, above: Decided, *, folder: bool) -> Decided:
        """Return what the last pattern of `include` says that names a path, or a folder above it."""
        own = UNDECIDED if self._include is None else self._include.decided(path, folder=folder)
        return max(own, above, key=lambda one: one[0])

    def _is_left_out(self, path: str, ignoring: Sequence[tuple[str, Patterns]], *, folder: bool) -> bool:
        """The innermost .gitignore that names a path decides."""
        if self._exclude is not None and self._exclude.names(path, folder=folder):
            return True
        for below, patterns in reversed(ignoring):
            named = patterns.names(path.removeprefix(below), folder=folder)
            if named is not None:
                return named
        return False


def _about(entry: os.DirEntry[str]) -> os.stat_result | OSError:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError as error:
        return error


def _identity(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


def _patterns_of(patterns: Sequence[str]) -> Patterns | None:
    """Return the patterns that a user gives. UnreadableFileError where one cannot be read."""
    found = Patterns(patterns) if patterns else None
    if found is not None and found.refused:
        raise UnreadableFileError(f"the patterns {found.refused} cannot be read")
    return found
