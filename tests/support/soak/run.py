"""A soak: callers, kills, a neighbour; then all that is still known is asked for, and forgotten."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import time
from pathlib import Path
from random import Random
from typing import Any

from support.soak.beside import Neighbour
from support.soak.callers import Caller
from support.soak.calls import Calls
from support.soak.names import KEYS, MEMORIES
from support.soak.oracle import Oracle, Presence, StoredMemory
from support.soak.removing import make, take_out
from support.soak.server import Sample, Server

CALLERS = 20
MOST = 100_000  # things that one caller does
# What a process may hold more at the end than after its first answers: threads of the pool, open memories, heap.
TOLERANCE = Sample(threads=12, descriptors=60, rss_mib=160, temporary=0)
_ROOT = KEYS[0]
_OVER = ("done", "failed", "cancelled")


class Soak:
    """One run over a folder that is empty."""

    def __init__(self, folder: Path, seed: int, seconds: float) -> None:
        self.seed, self.seconds, self.rng = seed, seconds, Random(seed)
        self.server, self.oracle = Server(folder, KEYS), Oracle(MEMORIES)
        self.calls = Calls(self.server, self.oracle)
        self.responses: list[Any] = []
        callers = [Caller(number, seed, self.calls, self.responses) for number in range(CALLERS)]
        self.callers = callers
        self.neighbour = Neighbour(Caller(-len(KEYS), seed, self.calls, self.responses), folder, self.server.root)
        self.kills = self.ends = 0
        self.samples: list[Sample] = []

    async def run(self) -> dict[str, Any]:
        """Run it, and return what was done and what was wrong."""
        await self.server.start()
        for memory in self.oracle.memories.values():
            await make(self.calls, _ROOT, memory)
        begun = time.monotonic()
        calm = 0.3 * self.seconds  # so long nobody kills it
        self.calls.until = begun + self.seconds
        working = [asyncio.create_task(one.live(MOST)) for one in self.callers]
        working.append(asyncio.create_task(self.neighbour.live(max(4.0, self.seconds / 100))))
        try:
            await self._kill(self.calls.until - calm)
            self.calls.until = max(self.calls.until, time.monotonic() + calm)
            await asyncio.sleep(min(10.0, calm / 3))  # the pools fill
            await self._sample()
            self.calls.go.set()
            await asyncio.gather(*working)
            await self._sample()
            self.calls.go.set()
            await self._ask_for_all()
            await self._forget_much()
        finally:
            for one in working:
                one.cancel()
            await self.calls.http.aclose()
            well = await self.server.end()
        self.oracle.require(well, "stop", "SIGTERM does not end the service, or it fails")
        self._search_disk("after the service ended, ")
        self._compare()
        return self._report()

    async def _kill(self, until: float) -> None:
        """Kill the service again and again, at least once by each signal, and start it on the same folder."""
        least, most = (20.0, 60.0) if self.seconds > 300 else (8.0, 14.0)
        for number in itertools.count():
            pause = self.rng.uniform(least, most)
            if number >= 2 and pause > until - time.monotonic():
                return
            await asyncio.sleep(pause)
            if number % 3 == 1:
                self.ends += 1
                self.oracle.require(await self.server.end(), "stop", "SIGTERM does not end the service, or it fails")
            else:
                self.kills += 1
                self.oracle.require(self.server.alive, "died", "the service was not there to be killed")
                await self.server.kill()
            if self.rng.random() < 0.3:
                self.kills += 1
                await self.server.kill_at_start(self.rng.uniform(0.05, 1.5))
            await self.server.start()

    async def _sample(self) -> None:
        """Note what the process holds while nothing is under way."""
        await self.calls.quiet()
        await self._readings_over()
        await asyncio.sleep(2)
        self.samples.append(self.server.sample())

    async def _readings_over(self) -> None:
        """Wait until no text waits to be read, and tell the oracle how its reading ended."""
        for memory in self._there():
            for _ in range(600):
                reply = await self.calls.send("readings", _ROOT, "GET", f"/v1/memories/{memory.name}/readings", memory)
                listed = {} if reply is None or reply.status != 200 else {one["id"]: one for one in reply.json["data"]}
                if all(one["status"] in _OVER for one in listed.values()):
                    break
                await asyncio.sleep(0.2)
            else:
                waiting = [one for one in listed.values() if one["status"] not in _OVER]
                self.oracle.fault("a reading does not end", f"{memory.name!r}: {json.dumps(waiting[:2])}")
                continue
            for text in memory.texts:
                self._over(memory, text, listed.get(text.reading))

    def _over(self, memory: StoredMemory, text: Any, told: dict[str, Any] | None) -> None:
        if text.writing or text.there is Presence.NO:
            return
        if told is not None:
            self.callers[0].ended(text, told)
        elif text.failed and text.made == memory.made and not text.clouded:
            self.oracle.fault("failed reading is not told", self.oracle.told(text))
        text.settled = True

    def _there(self) -> list[StoredMemory]:
        return [one for one in self.oracle.memories.values() if one.there is Presence.YES]

    # --- the end

    async def _ask_for_all(self) -> None:
        """Look for everything that was acknowledged."""
        for memory in self.oracle.memories.values():
            if memory.there is not Presence.YES:
                await make(self.calls, _ROOT, memory)
        await self._readings_over()
        for memory in self._there():
            one = f"/v1/memories/{memory.name}"
            reply = await self.calls.send("export", _ROOT, "GET", f"{one}/export", memory)
            certain = [text for text in memory.texts if text.certain]
            self.oracle.missing(b"" if reply is None else reply.data, certain, f"the last export of {memory.name!r}")
            for text in certain:
                body = {"query": text.handle, "source": [text.source], "max_results": 50}
                reply = await self.calls.send("search", _ROOT, "POST", f"{one}/search", memory, json=body)
                found = "" if reply is None else reply.data.decode()
                told = f"the last search in its source: {self.oracle.told(text)}"
                self.oracle.require(text.secret in found, "not found", told)

    async def _forget_much(self) -> None:
        """Forget whatever may or may not be there, and half of what is; then look for it everywhere."""
        for memory in self._there():
            one = f"/v1/memories/{memory.name}"
            for text in list(memory.texts):
                if text.there is Presence.NO or (text.there is Presence.YES and self.rng.random() < 0.5):
                    continue
                if text.failed and text.reading:
                    path = f"{one}/readings/{text.reading}"
                    await self.calls.send("cancel", _ROOT, "DELETE", path, memory, expected={200, 404})
                gone = await take_out(self.calls, _ROOT, memory, text.source)
                self.oracle.require(gone, "not forgotten", f"source {text.source!r} of {memory.name!r}")
            await self.calls.send("compact", _ROOT, "POST", f"{one}/compact", memory)
            body = {"model": memory.name, "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 2}
            await self.calls.send("chat", _ROOT, "POST", "/v1/chat/completions", memory, json=body)
            await self.calls.send("export", _ROOT, "GET", f"{one}/export", memory)
            for what in ("", "/sources", "/readings"):
                await self.calls.send(f"get {what}", _ROOT, "GET", f"{one}{what}", memory)
        for id, key, memory, *_ in self.responses[-500:]:
            shows = (memory.name,)
            await self.calls.send("kept", key, "GET", f"/v1/responses/{id}", shows=shows, expected={200, 404})
        await asyncio.sleep(1)
        self._search_disk("while the service runs, ")
        spool = [one.name for one in (self.server.root / ".service" / "spool").iterdir()]
        self.oracle.require(not spool, "left in the spool", f"after all was read or taken back: {spool[:5]}")

    def _search_disk(self, when: str) -> None:
        root = self.server.root
        strange = {one.name for one in root.iterdir()} - set(MEMORIES) - {".service"}
        self.oracle.require(not strange, "left in the folder", f"{when}{sorted(strange)}")
        for folder in (root, self.server.temporary):
            for file in folder.rglob("*"):
                if file.is_file():
                    self.oracle.left_on_disk(file.read_bytes(), f"{when}{file.relative_to(folder.parent)}")
        self._read_log(when)

    def _read_log(self, when: str) -> None:
        """Check that the log is a JSON object a line, tells of no failure, and has nothing that was forgotten."""
        log = self.server.log.read_bytes()
        self.oracle.left_on_disk(log, f"{when}the log")
        strange = [line for line in log.splitlines() if line[:1] != b"{"]
        self.oracle.require(not strange, "log is no JSON", f"{when}{b' '.join(strange[:40]).decode(errors='replace')}")
        # An answer was under way when SIGTERM came; a copy was being sent when something was forgotten.
        late, cut = b"timeout graceful shutdown exceeded", b"without completing response"
        for line in log.splitlines():
            if b'"level": "error"' in line and late not in line and cut not in line:
                self.oracle.fault("log of an error", f"{json.loads(line)['message']}: {line[-300:].decode()}")
        ended = sum(self.calls.counted["export", how] for how in ("killed", "given up"))
        told = f"{when}{log.count(cut)} answers were cut off, {ended} exports ended"
        self.oracle.require(log.count(cut) <= ended, "log of an error", told)

    def _compare(self) -> None:
        before, after, more = (dataclasses.asdict(one) for one in (*self.samples, TOLERANCE))
        for name in before:
            told = f"{name}: {after[name]} after {before[name]}, expected at most {more[name]} more"
            self.oracle.require(after[name] <= before[name] + more[name], "held at the end", told)

    def _report(self) -> dict[str, Any]:
        operations: dict[str, dict[str, int]] = {}
        for (did, status), count in sorted(self.calls.counted.items()):
            operations.setdefault(did, {})[status] = count
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "operations": sum(self.calls.counted.values()),
            "of_each": operations,
            "kills": self.kills,
            "ends": self.ends,
            "starts": self.server.lives,
            **{name: self.oracle.counts[name] for name in ("acknowledged", "forgotten", "checks")},
            "before": dataclasses.asdict(self.samples[0]),
            "after": dataclasses.asdict(self.samples[1]),
            "tolerance": dataclasses.asdict(TOLERANCE),
            "fault_kinds": dict(self.oracle.fault_kinds),
            "faults": self.oracle.faults,
        }


def soaked(folder: Path, seed: int, seconds: float) -> dict[str, Any]:
    """Run a soak in a folder that is empty, and return its report."""

    async def run() -> dict[str, Any]:
        return await Soak(folder, seed, seconds).run()

    return asyncio.run(run())
