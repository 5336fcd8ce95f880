"""Forks of a memory that is being read, one a length: each is there whole or not at all.

In their folder stand the profiles of the run, too: what one fork's calibration finds serves the longer ones.
"""

from __future__ import annotations

import pathlib
import shutil

from everlong.memory import Memory

PROFILES = "profiles"
READING = "reading.everlong"  # the memory that reads


def fork_of(folder: pathlib.Path, length: int) -> pathlib.Path:
    """Where the fork at that length lies."""
    return folder / f"{length}.everlong"


def keep_fork(memory: Memory, folder: pathlib.Path) -> None:
    """Fork into `folder`; what an earlier fork left there that was cut short is replaced."""
    half = folder.with_suffix(".begun")
    shutil.rmtree(half, ignore_errors=True)
    memory.fork(half).close()
    half.rename(folder)
