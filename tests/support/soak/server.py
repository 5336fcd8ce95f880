"""The service in a process of its own, which is killed and started again on the same folder."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

from everlong.service_data.keys import Key, Keys
from everlong.service_data.limits import Limits
from support.processes import PROCESSES

LIMITS = Limits(open_memories=4, host_bytes=256 << 20, conversations=16, waiting=64, answer_seconds=60.0)
_LISTENS = re.compile(rb"listens at (http://127\.0\.0\.1:\d+)")
# What the service keeps in its own folder, beside what it makes for a moment.
_KEPT = {"audit.log", "spool", "conversations", "alone"}


@dataclasses.dataclass(frozen=True)
class Sample:
    """What a process holds while nobody asks for anything."""

    threads: int
    descriptors: int
    rss_mib: int
    temporary: int  # files for a moment: in TMPDIR, and in the service's own folder


def _serve(root: Path, temporary: Path, log: Path, keys: tuple[Key, ...]) -> None:
    """Run the service, as `everlong serve` does, with the tiny model."""
    opened = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    sys.stdout, sys.stderr = open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    os.environ["TMPDIR"], tempfile.tempdir = str(temporary), None
    import torch

    from everlong.serve.logs import log_as_json
    from everlong.serve.server import serve
    from everlong.serve.service import Service
    from support.service import tiny_loaded

    torch.set_num_threads(1)
    service = Service(tiny_loaded(), root, Keys(keys), LIMITS)
    log_as_json()
    serve(service, "127.0.0.1", 0)


class Server:
    """The service of one folder, through all its lives."""

    def __init__(self, folder: Path, keys: tuple[Key, ...]) -> None:
        self.root, self.temporary, self.log = folder / "memories", folder / "tmp", folder / "service.log"
        self._keys = keys
        for made in (self.root, self.temporary):
            made.mkdir(parents=True)
        self.log.touch()
        self.url, self.lives, self.ending = "", 0, False
        self.up = asyncio.Event()

    async def start(self) -> None:
        """Start it, and wait until it listens. RuntimeError, with what it wrote, where it does not."""
        told = self.log.stat().st_size
        self._begin()
        self.lives += 1
        for _ in range(1200):
            written = self.log.read_bytes()[told:]
            if found := _LISTENS.search(written):
                self.url, self.ending = found.group(1).decode(), False
                self.up.set()
                return
            if not self._process.is_alive():
                break
            await asyncio.sleep(0.05)
        await self.kill()
        raise RuntimeError(f"the service does not start: {written[-3000:].decode(errors='replace')}")

    async def kill(self) -> None:
        """End it by SIGKILL."""
        self._leave()
        self._process.kill()
        await asyncio.to_thread(self._process.join)

    async def kill_at_start(self, seconds: float) -> None:
        """Start it, and kill it after so long, whatever it does then."""
        self._begin()
        await asyncio.sleep(seconds)
        await self.kill()

    def _begin(self) -> None:
        arguments = (self.root, self.temporary, self.log, self._keys)
        self._process = PROCESSES.Process(target=_serve, args=arguments, name="soaked service")
        self._process.start()

    async def end(self, seconds: float = 90.0) -> bool:
        """End it by SIGTERM. Return whether it ended by itself."""
        self._leave()
        self._process.terminate()
        await asyncio.to_thread(self._process.join, seconds)
        well = self._process.exitcode in (0, -signal.SIGTERM)
        if self._process.exitcode is None:
            await self.kill()
        return well

    def _leave(self) -> None:
        self.ending = True
        self.up.clear()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def sample(self) -> Sample:
        """Read of /proc what the process holds now."""
        process = Path("/proc") / str(self._process.pid)
        status = (process / "status").read_text()
        own = [one.name for one in (self.root / ".service").iterdir() if not one.name.startswith("responses.sqlite3")]
        return Sample(
            threads=int(re.findall(r"Threads:\s+(\d+)", status)[0]),
            descriptors=len(os.listdir(process / "fd")),
            rss_mib=int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) >> 10,
            temporary=len(list(self.temporary.rglob("*"))) + len(set(own) - _KEPT),
        )
