"""A second process on the service's folders: `everlong read`, and a program that forgets."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from support.models import tiny_model
from support.processes import everlong_command, run_script
from support.service import chat_tokenizer
from support.soak.callers import Caller
from support.soak.client import held
from support.soak.oracle import Presence, StoredMemory

_BUSY = 75
_FORGET = f"""
import sys
from everlong.errors import MemoryBusyError
from everlong.memory import Memory
try:
    with Memory.open(sys.argv[1]) as memory:
        print(memory.forget(source=sys.argv[2]))
        memory.compact()
except MemoryBusyError:
    sys.exit({_BUSY})
"""


class Neighbour:
    """Whoever uses the folders while the service does."""

    def __init__(self, caller: Caller, folder: Path, root: Path) -> None:
        """`caller` draws texts, and has a key for all memories."""
        self._caller, self._folder, self._root = caller, folder, root
        self._calls, self._oracle, self._rng = caller.calls, caller.oracle, caller.rng
        self._model = folder / "model"
        tiny_model().save_pretrained(self._model)
        chat_tokenizer().save_pretrained(self._model)

    async def live(self, pause: float) -> None:
        while time.monotonic() < self._calls.until:
            await asyncio.sleep(self._rng.uniform(0, pause))
            await self._calls.go.wait()
            there = [one for one in self._oracle.memories.values() if one.there is Presence.YES and not one.held]
            if not there:
                continue
            memory = self._rng.choice(there)
            self._calls.under_way += 1
            try:
                with held(memory):
                    await (self._read(memory) if self._rng.random() < 0.3 else self._forget(memory))
            finally:
                self._calls.under_way -= 1

    async def _forget(self, memory: StoredMemory) -> None:
        text = self._caller.one_text(memory)
        if text is None:
            return
        leaving = self._oracle.leave(memory, text.source, "a second process", waiting=False)
        ended = await asyncio.to_thread(run_script, _FORGET, self._root / memory.name, text.source)
        self._calls.counted["forget beside", str(ended.returncode)] += 1
        self._oracle.left(leaving, {0: True, _BUSY: False}.get(ended.returncode))
        self._oracle.require(ended.returncode in (0, _BUSY), "forget beside", ended.stderr[-1500:])

    async def _read(self, memory: StoredMemory) -> None:
        file = self._folder / "beside.txt"
        text = self._oracle.send(self._caller.text_for(memory))
        file.write_text(self._caller.words_of(text))
        given = ("--memory", self._root / memory.name, "--model", self._model, "--source", text.source)
        ended = await asyncio.to_thread(everlong_command, "read", file, *given)
        self._calls.counted["read beside", str(ended.returncode)] += 1
        if ended.returncode == 0:
            self._oracle.accepted(text, settled=True)
        else:
            text.settled = True
            self._oracle.unknown(text)
            self._oracle.require("Traceback" not in ended.stderr, "read beside", ended.stderr[-1500:])
