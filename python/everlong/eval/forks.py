"""Forks of a memory that is being read, one a length: each is there whole or not at all."""

from __future__ import annotations

import pathlib
import shutil

from everlong.memory import Memory


def keep_fork(memory: Memory, folder: pathlib.Path) -> None:
    """Fork into `folder`; what an earlier fork left there that was cut short is replaced."""
    half = folder.with_suffix(".begun")
    shutil.rmtree(half, ignore_errors=True)
    memory.fork(half).close()
    half.rename(folder)
