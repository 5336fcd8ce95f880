"""Processes for what would end or change the process of the tests.

They are forks of a process that has imported torch, so they start fast.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["everlong", "transformers.models.llama.modeling_llama"])


def killed(work: Callable[..., None], *arguments: Any) -> Any:
    """Run `work` in a process until it calls `tell_and_wait`, kill the process, and return what it told.

    `work` gets `arguments` and the pipe to tell through. Raises EOFError if the process ends by itself.
    """
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=work, args=(*arguments, there))
    process.start()
    there.close()
    try:
        told = here.recv()
    finally:
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    return told


def tell_and_wait(pipe: Connection, told: Any) -> None:
    """Send `told`, then wait to be killed."""
    pipe.send(told)
    pipe.recv()
