"""Forks of a memory while it is being read, one a length. Each is there whole or not at all.

Their folder also has the profiles of the run: what one fork's calibration finds serves the longer ones.
"""

from __future__ import annotations

import pathlib
import shutil

from everlong.memory import Memory

PROFILES = "profiles"
READING = "reading.everlong"  # the memory that reads


def fork_of(folder: pathlib.Path, length: int) -> pathlib.Path:
    """Return the folder of the fork at that length."""
    return folder / f"{length}.everlong"


def store_fork(memory: Memory, folder: pathlib.Path) -> None:
    """Fork into `folder`; an earlier fork that was cut short is replaced."""
    half = folder.with_suffix(".begun")
    shutil.rmtree(half, ignore_errors=True)
    memory.fork(half).close()
    half.rename(folder)
