"""Sources are forgotten, memories are removed and made again."""

from __future__ import annotations

from everlong.service_data.keys import Key
from support.soak.calls import Calls
from support.soak.client import Client, held
from support.soak.oracle import Presence, StoredMemory


class Removing(Client):
    """What a caller does who takes something out."""

    async def forget(self) -> None:
        await self.take_out(by_tool=False)

    async def forget_by_tool(self) -> None:
        await self.take_out(by_tool=True)

    async def take_out(self, *, by_tool: bool) -> None:
        memory = self.memory()
        text = self.one_text(memory)
        if text is not None and self.key.write:
            await take_out(self.calls, self.key, memory, text.source, by_tool=by_tool)

    async def compact(self) -> None:
        if self.key.write:
            memory = self.memory()
            path = f"/v1/memories/{memory.name}/compact"
            await self.calls.send("compact", self.key, "POST", path, memory, expected={200, 409})

    async def make(self) -> None:
        """Make a memory that is not there, or may not be."""
        there = [one for one in self.mine if one.there is not Presence.YES and not one.held]
        if there and self.key.write:
            memory = self.rng.choice(there)
            with held(memory):
                await make(self.calls, self.key, memory)

    async def remove(self) -> None:
        there = [one for one in self.mine if one.there is Presence.YES and not one.held]
        if there and self.key.write:
            memory = self.rng.choice(there)
            with held(memory):
                leaving = self.oracle.leave(memory, None, f"removal by {self.key.name}")
                memory.made += 1
                path = f"/v1/memories/{memory.name}"
                reply = await self.calls.send("remove", self.key, "DELETE", path, memory, expected={200, 409})
                gone = None if reply is None or reply.status >= 500 else reply.status == 200
                if reply is not None and reply.status == 404:
                    self.oracle.fault("memory lost", f"{memory.name!r} is not there to be removed")
                memory.made += 1
                memory.there = Presence.MAYBE if gone is None else Presence.NO if gone else Presence.YES
                self.oracle.left(leaving, gone)


async def make(calls: Calls, key: Key, memory: StoredMemory) -> None:
    """Make a memory that is not there, or may not be."""
    earlier = [text for text in memory.texts if not text.writing]
    memory.made += 1
    reply = await calls.send("make", key, "POST", "/v1/memories", json={"name": memory.name}, expected={201, 409})
    memory.made += 1
    if reply is None or reply.status not in (201, 409):
        memory.there = Presence.MAYBE
    elif reply.code != "memory_busy":
        told = f"{memory.name!r} is there, after it was removed"
        calls.oracle.require(reply.status == 201 or memory.there is Presence.MAYBE, "not removed", told)
        calls.oracle.made(memory, earlier if reply.status == 201 else ())


async def take_out(calls: Calls, key: Key, memory: StoredMemory, source: str, *, by_tool: bool = False) -> bool:
    """Forget a source. Return whether it is known to be gone."""
    oracle = calls.oracle
    leaving, begun = oracle.leave(memory, source, f"{'mcp' if by_tool else 'forget'} by {key.name}"), memory.sure
    certain = [text for text, sure in leaving.texts if sure and text.certain_but(1)]
    gone: bool | None = None
    if by_tool:
        told = await calls.tool("mcp forget", key, memory, "forget", source=source)
        nothing = told is not None and told[0] and told[1]["blocks"] == 0
        gone = True if told is not None and told[0] else None
    else:
        path = f"/v1/memories/{memory.name}/sources"
        reply = await calls.send(
            "forget", key, "DELETE", path, memory, params={"source": source}, expected={200, 404, 409}
        )
        nothing = reply is not None and reply.code == "source_not_found"
        gone = None if reply is None or reply.status >= 500 else reply.status == 200 or nothing
    if nothing and begun == memory.sure and begun[1]:
        for text in certain:
            oracle.require(not text.certain_but(1), "not found", f"a forget: {oracle.told(text)}")
    oracle.left(leaving, gone)
    return bool(gone)
