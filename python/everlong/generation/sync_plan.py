"""What is to be done so that a memory holds what a folder holds."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from everlong.errors import MostFilesGoneError
from everlong.files.document import NoTextError, UnreadableFileError
from everlong.files.folder import Choice, File, Listing, listed
from everlong.files.parsing import digest_of, opened, too_large
from everlong.generation.file_input import file_texts
from everlong.memory import Memory
from everlong.memory.origins import spelled, unspelled
from everlong.memory.synced import EMPTY, FileState, SyncedFile, synced_files, table_of

_TICK = 2_000_000_000  # ns: file systems have clocks as slow as that


@dataclasses.dataclass
class Plan:
    """What is to be done. Paths are from the root of the file system."""

    folder: Path
    held: dict[str, SyncedFile]
    table: dict[str, FileState]
    new: list[str] = dataclasses.field(default_factory=list)
    changed: list[str] = dataclasses.field(default_factory=list)
    moved: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # from where, to where
    gone: list[str] = dataclasses.field(default_factory=list)
    kept: list[str] = dataclasses.field(default_factory=list)
    unreadable: dict[str, str] = dataclasses.field(default_factory=dict)
    held_here: int = 0  # files that the memory holds of this folder
    emptied: int = 0  # of those that changed: files without text by now, as far as that was looked into

    @property
    def lost(self) -> int:
        """The number of files whose text would be forgotten, and none come in its place."""
        return len(self.gone) + self.emptied

    @property
    def most_is_lost(self) -> bool:
        """Whether more than half of the folder's files would be lost: it may be empty because it is not mounted."""
        return 2 * self.lost > self.held_here

    def require_most_there(self) -> None:
        """Raise MostFilesGoneError where `most_is_lost`."""
        if self.most_is_lost:
            raise MostFilesGoneError(
                f"{self.lost:,} of {self.held_here:,} files that the memory holds of {self.folder} are gone, without "
                "text, or left out by now. Nothing was done. Is it the right folder, and is it mounted? To have the "
                "memory forget them, sync with forget_all=True (--forget-all)"
            )

    def name(self, path: str) -> str:
        """Return a path from the folder on; one that is not in it, as it is."""
        return path.removeprefix(self.below)

    @property
    def below(self) -> str:
        """What the path of each file below the folder begins with."""
        return origin_in(self.folder, "").rstrip(os.sep) + os.sep


def origin_in(folder: Path, path: str) -> str:
    """Return the origin of a file below a folder. Bytes of its name that are no UTF-8 are spelled out."""
    return spelled(os.fspath(folder / path))


def plan(
    memory: Memory | None, folder: Path, choice: Choice, *, forget_all: bool = False
) -> tuple[Plan, dict[str, Path]]:
    """Return what is to be done, and the files by their paths. `folder` is from the root, without links.

    OSError where the folder cannot be listed: then nothing is known to be gone. With `forget_all` a folder that is not
    there has no files.
    """
    inside = [memory.path] if memory is not None and memory.path is not None else []
    try:
        listing = listed(folder, choice, without=inside)
    except FileNotFoundError:
        if not forget_all:
            raise
        listing = Listing((), {})
    found = Plan(folder, synced_files(memory), {})
    files = {origin_in(folder, file.path): folder / file.path for file in listing.files}
    found.table = _looked_into(found, table_of(memory), files, listing)
    fresh = _sort(found, files)
    missing = _missing(found, files, listing)
    _match(found, fresh, missing)
    found.held_here = sum(path.startswith(found.below) for path in found.held)
    _look_for_emptied(found, files, parse=not forget_all)
    return found, files


def _look_for_emptied(found: Plan, files: dict[str, Path], *, parse: bool) -> None:
    """Count the changed files that have no text any more, as far as it matters: they may come to most files.

    That parses files that are parsed once more when they are read.
    """
    changed = [path for path in found.changed if found.table[path].digest not in found.held[path].blocks]
    found.emptied = sum(found.table[path].size == 0 for path in changed)
    unknown = [path for path in changed if found.table[path].size > 0] if parse else []
    while unknown and not found.most_is_lost and 2 * (found.lost + len(unknown)) > found.held_here:
        found.emptied += _has_no_text(files[unknown.pop()])


def _has_no_text(file: Path) -> bool:
    """Return whether a file says that it has no text. One that cannot be read now may have some."""
    try:
        with opened(file, follow_links=False) as descriptor:
            texts = file_texts(file, descriptor=descriptor).texts
    except NoTextError:
        return True
    except (UnreadableFileError, OSError):
        return False
    return all(not piece or piece.isspace() for text in texts for piece in text.pieces)


def _looked_into(
    found: Plan, before: dict[str, FileState], files: dict[str, Path], listing: Listing
) -> dict[str, FileState]:
    """Return the table as it is now. A file of another size or time is hashed, unless it is too large to be read."""
    for name, why in listing.unreadable.items():
        found.unreadable[origin_in(found.folder, name)] = why
    table = {path: seen for path, seen in before.items() if not path.startswith(found.below)}
    for (origin, path), file in zip(files.items(), listing.files, strict=True):
        seen = before.get(origin)
        try:
            if seen is None or (seen.size, seen.time) != (file.size, file.time):
                seen = _seen(path, file, seen)
            table[origin] = seen
        except OSError as error:
            found.unreadable[origin] = error.strerror or str(error)
        except UnreadableFileError as error:  # it was a file when the folder was listed
            found.unreadable[origin] = str(error)
    return table


def _seen(path: Path, file: File, before: FileState | None) -> FileState:
    if why := too_large(file.size):  # it may be all holes, and take years
        return FileState(file.size, file.time, f"{file.size} bytes at {file.time}", why)
    now = time.time_ns()
    with opened(path, follow_links=False) as descriptor:
        digest = digest_of(descriptor)
    why = before.why if before is not None and before.digest == digest else ""
    return FileState(file.size, file.time if file.time < now - _TICK else -1, digest, why)


def _sort(found: Plan, files: Iterable[str]) -> list[str]:
    """Sort the files into those that are there, those that changed, and those that are new, which it returns."""
    fresh = []
    for path in files:
        seen, held = found.table.get(path), found.held.get(path)
        if seen is None:  # it cannot be opened: what the memory has of it stays
            continue
        if held is None and seen.why == EMPTY:
            found.kept.append(path)
        elif held is None and seen.why:
            found.unreadable[path] = seen.why
        elif held is not None and held.whole and set(held.blocks) == {seen.digest}:
            found.kept.append(path)
        elif held is not None:
            found.changed.append(path)
        else:
            fresh.append(path)
    return fresh


def _missing(found: Plan, files: dict[str, Path], listing: Listing) -> list[str]:
    """Return the files that the memory holds and the folder does not, in order of their paths.

    A file of another folder counts where it is there no more: it may have come to this one.
    """
    unknown = tuple(f"{origin_in(found.folder, path)}{os.sep}" for path in listing.unreadable)  # they may be folders
    missing = []
    for path in sorted(found.held):
        if path in files or path in found.unreadable or path.startswith(unknown):
            continue
        if path.startswith(found.below) or not os.path.lexists(unspelled(path)):
            missing.append(path)
    return missing


def _match(found: Plan, fresh: Sequence[str], missing: Sequence[str]) -> None:
    """Tell files that moved from those that are gone and new.

    A block cannot lose a place where its file stood, only get a newer one. So a file that comes to such a place makes
    the moved one be read anew, and so does a file that moves back.
    """
    arrived = set(fresh) | set(found.changed)
    stood = {place: path for path in found.kept if path in found.held for place in found.held[path].earlier}
    sources: dict[str, list[str]] = {}
    gone = []
    for path in missing:
        held = found.held[path]
        (digest,) = held.blocks if len(held.blocks) == 1 else ("",)
        # The same move, cut short: some of its blocks are there already.
        target = stood.get(path, "")
        if target and digest in found.held[target].blocks:
            found.moved.append((path, target))
        elif digest and held.whole and not held.earlier & arrived:
            sources.setdefault(digest, []).append(path)
        else:
            gone.append(path)
    for path in fresh:
        waiting = sources.get(found.table[path].digest, [])
        if waiting:
            found.moved.append((waiting.pop(0), path))
        else:
            found.new.append(path)
    gone += [path for paths in sources.values() for path in paths]
    found.gone = sorted(path for path in gone if path.startswith(found.below))
    outdated = {path for place, path in stood.items() if place in arrived}
    found.kept = [path for path in found.kept if path not in outdated]
    found.changed = sorted({*found.changed, *outdated})
