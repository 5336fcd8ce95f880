"""Memories are searched, asked, listed and exported, also those that a key may not see."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from support.soak.client import Client
from support.soak.names import MEMORIES


class Inspecting(Client):
    """What a caller does who reads."""

    async def search(self) -> None:
        memory = self.memory()
        text = self.one_text(memory)
        body: dict[str, Any] = {"query": text.handle if text else "river", "max_results": 50}
        if text is not None and self.rng.random() < 0.6:
            body["source"] = [text.source]
        path, certain, begun = f"/v1/memories/{memory.name}/search", text is not None and text.certain, memory.sure
        reply = await self.calls.send("search", self.key, "POST", path, memory, json=body)
        if text is None or reply is None or reply.status != 200 or not (certain and text.certain):
            return
        if "source" in body and begun == memory.sure:
            told = f"a search in its source: {self.oracle.told(text)}"
            self.oracle.require(text.secret in reply.data.decode(), "not found", told)

    async def chat(self, cut: float | None = None) -> None:
        """Ask, half of the time within a conversation, which may go on."""
        memory, rng = self.memory(), self.rng
        turns: list[dict[str, str]] = []
        if self.talks and rng.random() < 0.5:
            memory, turns = rng.choice(self.talks)
        elif rng.random() < 0.4:
            turns = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello."}]
        text, stream = self.one_text(memory), rng.random() < 0.5
        turns = [*turns, {"role": "user", "content": text.handle if text else "Who?"}]
        body = {"model": memory.name, "messages": turns, "max_tokens": rng.randrange(1, 40), "stream": stream}
        chunks = rng.randrange(1, 8) if stream and rng.random() < 0.5 else None
        path = "/v1/chat/completions"
        reply = await self.calls.send("chat", self.key, "POST", path, memory, json=body, chunks=chunks, cut=cut)
        if reply is not None and reply.status == 200 and not stream and len(turns) < 8:
            said = {"role": "assistant", "content": reply.json["choices"][0]["message"]["content"] or "."}
            self.talks = [*self.talks[-3:], (memory, [*turns, said])]

    async def respond(self, cut: float | None = None) -> None:
        """Ask for a response that is kept, one half of the time behind an earlier one."""
        memory, rng = self.memory(), self.rng
        text = self.one_text(memory)
        earlier = [one for one in self.responses[-60:] if one[1] is self.key and one[2] is memory]
        body: dict[str, Any] = {"model": memory.name, "input": text.handle if text else "Who?"}
        body |= {"max_output_tokens": rng.randrange(1, 24), "stream": rng.random() < 0.3}
        if earlier and rng.random() < 0.6:
            body["previous_response_id"] = rng.choice(earlier)[0]
        taken, made = -1 if memory.taking else memory.taken, memory.made
        chunks = rng.randrange(1, 8) if body["stream"] and rng.random() < 0.5 else None
        reply = await self.calls.send(
            "respond", self.key, "POST", "/v1/responses", memory, json=body, expected={200, 404}, chunks=chunks, cut=cut
        )
        if reply is not None and reply.status == 200 and not body["stream"]:
            self.responses.append((reply.json["id"], self.key, memory, taken, made))

    async def kept(self) -> None:
        """Ask for an earlier response, now and then for another key's, or delete it."""
        if not self.responses:
            return
        one = self.rng.choice(self.responses[-200:])
        id, key, memory, taken, made = one
        path = f"/v1/responses/{id}"
        if key is not self.key:
            await self.calls.send("kept_of_others", self.key, "GET", path, expected={404})
        elif self.rng.random() < 0.1:
            self.responses.remove(one)
            await self.calls.send("kept_deleted", key, "DELETE", path, shows=(), expected={200, 404})
        else:
            reply = await self.calls.send("kept", key, "GET", path, shows=(memory.name,), expected={200, 404})
            whole = (memory.taken, memory.made) == (taken, made) and one in self.responses
            if reply is not None and whole and reply.status in (200, 404):
                self.oracle.require(reply.status == 200, "response lost", f"{id} of {memory.name!r}, {key.name}")

    async def look(self) -> None:
        memory = self.memory()
        one = f"/v1/memories/{memory.name}"
        block = f"{one}/blocks/{self.rng.randrange(200)}"
        if self.rng.random() < 0.2:  # a block that is not there has the same code as a memory that is not
            await self.calls.send("block", self.key, "GET", block, shows=(memory.name,), expected={200, 404})
            return
        what = self.rng.choice(["/v1/memories", "/v1/models", "/metrics", "", "/sources", "/readings"])
        about = memory if what in ("", "/sources", "/readings") else None
        reply = await self.calls.send(f"get {what}", self.key, "GET", f"{one}{what}" if about else what, about)
        if reply is not None and reply.status == 200 and what in ("/v1/memories", "/v1/models"):
            hidden = [
                one["id"] for one in reply.json["data"] if one["id"] in MEMORIES and not self.key.may_see(one["id"])
            ]
            self.oracle.require(not hidden, "another's memory", f"{what} lists {hidden} for {self.key.name}")

    async def tools(self) -> None:
        memory = self.memory()
        text = self.one_text(memory)
        name = self.rng.choice(["recall", "sources", "ask"])
        given: dict[str, Any] = {} if name == "sources" else {"question": text.handle if text else "Who?"}
        given |= {"max_tokens": 4} if name == "ask" else {}
        await self.calls.tool(f"mcp {name}", self.key, memory, name, **given)

    async def resource(self) -> None:
        memory = self.memory()
        text = self.one_text(memory)
        if text is None or "/" in text.source:
            return
        uri = f"everlong://{memory.name}/{quote(text.source, safe='')}"
        await self.calls.mcp("mcp resource", self.key, memory, "resources/read", {"uri": uri})

    async def export(self) -> None:
        memory = self.memory()
        certain = [one for one in memory.texts if one.certain]
        begun = memory.sure
        chunks = 1 if self.rng.random() < 0.3 else None
        path = f"/v1/memories/{memory.name}/export"
        reply = await self.calls.send("export", self.key, "GET", path, memory, chunks=chunks)
        if reply is None or reply.status != 200 or chunks or begun != memory.sure:
            return
        self.oracle.missing(reply.data, certain, f"the export of {memory.name!r}")

    async def trespass(self) -> None:
        """Ask for a memory that the key may not see: it is none."""
        hidden = [one for one in self.oracle.memories.values() if not self.key.may_see(one.name)]
        if not hidden:
            return
        memory = self.rng.choice(hidden)
        one = f"/v1/memories/{memory.name}"
        question = [{"role": "user", "content": "Who?"}]
        choices: list[tuple[str, str, dict[str, Any]]] = [
            ("GET", one, {}),
            ("GET", f"{one}/sources", {}),
            ("GET", f"{one}/readings", {}),
            ("GET", f"{one}/export", {}),
            ("DELETE", one, {}),
            ("DELETE", f"{one}/sources?source=shared+1", {}),
            ("POST", f"{one}/search", {"json": {"query": "shared"}}),
            ("POST", f"{one}/sources", {"json": {"source": "no", "text": "no"}}),
            ("PUT", f"{one}/files/order.json", {"content": b"{}"}),
            ("POST", "/v1/chat/completions", {"json": {"model": memory.name, "messages": question}}),
            ("POST", "/v1/responses", {"json": {"model": memory.name, "input": "Who?"}}),
        ]
        method, path, given = self.rng.choice(choices)
        await self.calls.send("trespass", self.key, method, path, expected={404}, **given)
