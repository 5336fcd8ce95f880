"""Processes for what would end or change the process of the tests.

They are forks of a process that has imported torch, so they start fast.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["everlong.cli", "transformers.models.auto.tokenization_auto", "transformers.models.llama.modeling_llama"]
)


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


def everlong_command(*arguments: object, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run `everlong ARGUMENTS` with `typed` as its standard input."""
    return run_script("from everlong.cli import main; main()", *arguments, typed=typed)


def run_script(script: str, *arguments: object, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script as `python -c SCRIPT ARGUMENTS` would, without the seconds of importing torch and transformers.

    Which modules are imported says nothing here. A test of that needs `subprocess`.
    """
    argv = ["-c", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("stdin", "stdout", "stderr")]
        for stream in streams:
            stream.write_text(typed if stream.name == "stdin" else "")
        process = PROCESSES.Process(target=_run, args=(script, argv, streams, dict(os.environ), Path.cwd()))
        process.start()
        process.join()
        assert process.exitcode is not None
        out, err = (stream.read_text() for stream in streams[1:])
    return subprocess.CompletedProcess(argv, process.exitcode, out, err)


def _run(script: str, argv: list[str], streams: Sequence[Path], environment: Mapping[str, str], folder: Path) -> None:
    for descriptor, (stream, flags) in enumerate(zip(streams, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)):
        opened = os.open(stream, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    sys.argv = argv
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    exec(compile(script, "<string>", "exec"), {"__name__": "__main__"})
