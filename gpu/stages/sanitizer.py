"""Every kernel once under NVIDIA's compute-sanitizer: accesses, races in shared memory, numbers that nobody wrote.

The tools run beside each other. On a CPU the kernels run without them.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from stages.check import Check
from stages.kernels_once import DONE

# Look only at kernels whose mangled name says everlong, not at torch's own. What torch writes would count as never
# written, so initcheck looks at all kernels.
OURS = ("--kernel-name", "kns=everlong")
# everlong looks at the answers of the runtime's calls itself, and so does torch, which asks for what may not be there.
TOOLS = {"memcheck": (*OURS, "--report-api-errors", "no"), "racecheck": OURS, "initcheck": ()}
ELSEWHERE = "/usr/local/cuda*/bin/compute-sanitizer"
WANTED = ("memcheck", "racecheck")  # the others may be cut
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")
FOUND = 9  # the exit status for errors


def run(check: Check) -> None:
    if not check.on_gpu:
        with check.case("every kernel once, on the CPU"), tempfile.TemporaryDirectory() as folder:
            started = Started([], str(check.device), Path(folder) / "log.txt")
            text = started.text(check.left - 1)
            assert started.status == 0, text[-2000:]
            assert DONE in text, text[-2000:]
        return
    there = [shutil.which("compute-sanitizer"), *sorted(glob.glob(ELSEWHERE))]
    tool = next(filter(None, there), "")
    with check.case("compute-sanitizer is there"):
        assert tool, f"neither in PATH nor {ELSEWHERE}"
    if not tool:
        return
    with tempfile.TemporaryDirectory() as folder:
        under_way = {name: Started(command(tool, name), str(check.device), Path(folder) / name) for name in TOOLS}
        for name, started in under_way.items():
            finish(check, tool, name, started)


def command(tool: str, name: str, *, filtered: bool = True) -> list[str]:
    options = ["--error-exitcode", str(FOUND), "--target-processes", "all", "--print-limit", "20"]
    return [tool, "--tool", name, *options, *(TOOLS[name] if filtered else ())]


class Started:
    """stages.kernels_once in a process of its own, behind a tool's command."""

    def __init__(self, tool: list[str], device: str, log: Path) -> None:
        self._log = log
        # Each tensor gets memory of its own: in a block for many, nobody would see accesses past an end.
        environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        run_once = [*tool, sys.executable, "-m", "stages.kernels_once", device]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                run_once, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def status(self) -> int | None:
        return self._process.returncode

    def text(self, seconds: float) -> str:
        """Return what it printed once it has ended. After `seconds` it is killed, and `status` is negative."""
        try:
            self._process.wait(max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        return self._log.read_text(errors="replace")


def finish(check: Check, tool: str, name: str, started: Started) -> None:
    text = started.text(check.left - 3)
    if TOOLS[name] and started.status not in (0, FOUND, -9) and DONE not in text and not SUMMARY.search(text):
        check.tell(f"{name} refused", text[-1000:])
        started = Started(command(tool, name, filtered=False), str(check.device), started._log)
        text = started.text(check.left - 3)
    if started.status == -9 and name not in WANTED:
        check.tell(name, "cut for want of time")
        return
    with check.case(name):
        assert started.status != -9, f"cut for want of time: {text[-1000:]}"
        counts = [int(count) for count in SUMMARY.findall(text)]
        assert counts, f"no summary: {text[-1000:]}"
        check.figure(f"{name}: found", sum(counts), "errors", wanted="== 0")
        assert sum(counts) == 0, text[:3000]
        assert started.status == 0, f"{started.status}: {text[-2000:]}"
        assert DONE in text, text[-2000:]
