"""What the callers of a soak do, each drawn from its own random numbers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import PurePosixPath
from random import Random
from typing import Any
from urllib.parse import quote

from everlong.serve.keys import Key
from support.soak.calls import Calls, Reply
from support.soak.oracle import Shelved, Text, There
from support.soak.server import key_of
from support.soak.words import secret, word

# Names of the service's own files, of parts of its paths, and whatever else a name may be.
MEMORIES = ("files", "spool", "order.json", "responses.sqlite3", "a.b", "sources", "export", "alone", "M-_9", "x" * 64)
MEMORIES += ("removed-alone-1", "0")
KEYS = (
    key_of("root", ("*",)),
    key_of("ada", MEMORIES[:6]),
    key_of("bob", MEMORIES[3:9]),
    key_of("cam", MEMORIES[6:]),
    key_of("eve", (MEMORIES[0], MEMORIES[11], MEMORIES[5])),
    key_of("guest", MEMORIES[:8], write=False),
)
FILES = ("order.json", "responses.sqlite3", "responses.sqlite3-wal", "text.txt", "audit.log", "manifest", "...", "..a")
FILES += (
    ".hidden",
    "%2e%2e",
    "%2e%2e%2forder.json",
    "a b;$(id) & 'c'.md",
    "-rf",
    "CON",
    "名前 ünïcødé 🜁.txt",
    "a.tar.gz",
)
FILES += (
    "y" * 196 + ".txt",
    "é" * 100,
    "frame.safetensors",
    "text.txt.json",
    "a?b#c.txt",
    "spool",
    "order.json.new",
    "~",
)
NO_FILES = ("..", ".", " ", "a/b", "../../order.json", "a\\b", "z" * 201, "a\nb", "a\0b", "é" * 101)
NO_TEXTS = (b"SQLite format 3\0", b"\x89PNG\r\n\x1a\n")  # what a file begins with that is none
WRITTEN = {200, 202, 409, 422}
_FULL = 60  # texts of a memory: then callers forget some

# What a caller may do, and how often.
OPERATIONS = dict(post=12, put=10, put_no_name=1, follow=8, cancel=2, retry=1, give_up=6)
OPERATIONS |= dict(search=14, chat=9, respond=10, kept=6, look=12, tools=6, resource=2, export=2, trespass=4)
OPERATIONS |= dict(forget=8, forget_by_tool=3, compact=2, remove=1, make=4)


class Caller:
    """One of many, with a key that several have."""

    def __init__(self, number: int, seed: int, calls: Calls, responses: list[Any]) -> None:
        """`responses`: those of all callers, as (id, key, memory, what was taken out of it, the memory made)."""
        self.rng, self.key = Random(f"{seed} {number}"), KEYS[number % len(KEYS)]
        self.calls, self.oracle, self.responses = calls, calls.oracle, responses
        self.talks: list[tuple[Shelved, list[dict[str, str]]]] = []  # conversations that may go on
        self.mine = [one for one in self.oracle.memories.values() if self.key.may_see(one.name)]

    async def live(self, until: float, most: int) -> None:
        """Do one thing after the other."""
        names, weights = list(OPERATIONS), list(OPERATIONS.values())
        for _ in range(most):
            if time.monotonic() > until:
                return
            async with self.calls.turn():
                await getattr(self, self.rng.choices(names, weights)[0])()
            await asyncio.sleep(self.rng.uniform(0, 0.4))

    def memory(self) -> Shelved:
        return self.rng.choice(self.mine)

    def one_text(self, memory: Shelved) -> Text | None:
        """Draw a text of a memory that may be there."""
        there = [one for one in memory.texts if one.there is not There.NO]
        return self.rng.choice(there) if there else None

    # --- reading

    def text_for(self, memory: Shelved, file: str = "") -> Text:
        """Draw a text. Some sources have a secret in their name, some are shared by several texts."""
        rng = self.rng
        named = secret(rng) if rng.random() < 0.4 else ""
        source = f"notes {named}" if named else f"shared {rng.randrange(4)}"
        if file:  # a plain text is named without its ending
            source, named = PurePosixPath(file).stem, ""
        return Text(memory, source, secret(rng), "h" + word(rng, 9), named)

    def words_of(self, text: Text) -> str:
        more = " ".join(word(self.rng, self.rng.randrange(2, 9)) for _ in range(self.rng.randrange(2, 40)))
        return f"{text.handle} {text.secret}. " * 4 + more

    async def post(self, cut: float | None = None) -> None:
        memory = self.memory()
        if not self.key.write:
            return await self.may_not_write(memory)
        if len(memory.texts) > _FULL:
            return await self.forget()
        text = self.oracle.send(self.text_for(memory))
        body = {"source": text.source, "text": self.words_of(text), "wait": self.rng.random() < 0.3}
        path = f"/v1/memories/{memory.name}/sources"
        reply = await self.calls.send("post", self.key, "POST", path, memory, json=body, expected=WRITTEN, cut=cut)
        self.written(text, reply)

    async def put(self, cut: float | None = None) -> None:
        memory, rng = self.memory(), self.rng
        if not self.key.write:
            return await self.may_not_write(memory)
        file = rng.choice(FILES)
        own = rng.random() < 0.5
        text = self.oracle.send(self.text_for(memory, "" if own else file))
        words = self.words_of(text)
        data = (json.dumps({"note": words}) if file.endswith("json") else words).encode()
        if file == "order.json":
            data = self.forged(words)
        if rng.random() < 0.1:
            data, text.readable = rng.choice(NO_TEXTS) + data, False
        given = {"wait": "true"} if rng.random() < 0.3 else {}
        given |= {"source": text.source} if own else {}
        path = f"/v1/memories/{memory.name}/files/{quote(file, safe='')}"

        async def slowly() -> Any:
            for begin in range(0, len(data), 64):
                yield data[begin : begin + 64]
                await asyncio.sleep(0.02)

        content = slowly() if rng.random() < 0.3 else data
        reply = await self.calls.send(
            "put", self.key, "PUT", path, memory, content=content, params=given, expected=WRITTEN, cut=cut
        )
        self.written(text, reply)

    def forged(self, words: str) -> bytes:
        """Return what looks like the service's own note of a text, accepted for another memory."""
        named = {"source": words, "tags": ["by:root"], "happened": None, "plain": True}
        of = {"memory": self.rng.choice(MEMORIES), "key": "root", "id": "0" * 32, "number": 1, "file": "order.json"}
        return json.dumps({**of, "named": named}).encode()

    async def put_no_name(self) -> None:
        memory, file = self.memory(), self.rng.choice(NO_FILES)
        path = f"/v1/memories/{memory.name}/files/{quote(file, safe='').replace('.', '%2E')}"
        expected = {400, 403, 404, 405}
        await self.calls.send("put_no_name", self.key, "PUT", path, memory, content=b"words", expected=expected)

    def written(self, text: Text, reply: Reply | None) -> None:
        """Tell the oracle what became of a text."""
        if reply is None or reply.status in (408, 499) or reply.status >= 500:
            self.oracle.unknown(text)
        elif reply.status in (200, 202):
            text.reading, status = reply.json["id"], reply.json["status"]
            if status in ("waiting", "reading", "done"):
                self.oracle.accepted(text, settled=status == "done")
            else:
                self.ended(text, reply.json)
        elif reply.status == 422 or (reply.status == 409 and "status" in reply.json):
            text.reading = reply.json["id"]
            self.ended(text, reply.json)
            cancelled = reply.status == 409
            self.oracle.require(text.clouded or not cancelled, "cancelled by nobody", self.oracle.told(text))
        else:
            self.oracle.refused(text)

    def ended(self, text: Text, told: dict[str, Any]) -> None:
        """Note how a reading ended."""
        if told["status"] == "failed":
            self.oracle.failed(text, str(told["error"] or ""))
        elif told["status"] == "cancelled":
            self.oracle.unknown(text)
            text.settled = True
        elif told["status"] == "done":
            text.settled = True

    async def may_not_write(self, memory: Shelved) -> None:
        path = f"/v1/memories/{memory.name}"
        method, path, given = self.rng.choice(
            [
                ("POST", f"{path}/sources", {"json": {"source": "no", "text": "no"}}),
                ("PUT", f"{path}/files/no.txt", {"content": b"no"}),
                ("DELETE", f"{path}/sources?source=shared+1", {}),
                ("DELETE", path, {}),
                ("POST", f"{path}/compact", {}),
            ]
        )
        await self.calls.send("may_not_write", self.key, method, path, memory, expected={403}, **given)

    async def follow(self) -> None:
        """Ask how far a reading is."""
        memory = self.memory()
        unsettled = [one for one in memory.texts if one.reading and not one.settled]
        if not unsettled:
            return
        text = self.rng.choice(unsettled)
        path = f"/v1/memories/{memory.name}/readings/{text.reading}"
        reply = await self.calls.send("follow", self.key, "GET", path, memory, expected={200, 404})
        if reply is not None and reply.status == 200:
            self.ended(text, reply.json)

    async def cancel(self) -> None:
        memory = self.memory()
        text = self.one_text(memory)
        if text is None or not text.reading or not self.key.write or text.settled:
            return
        self.oracle.cancelling(text)
        path = f"/v1/memories/{memory.name}/readings/{text.reading}"
        await self.calls.send("cancel", self.key, "DELETE", path, memory, expected={200, 404})

    async def retry(self) -> None:
        """Let a reading that failed be tried again. It fails again, or it was set aside."""
        memory = self.memory()
        failed = [one for one in memory.texts if one.failed and one.reading]
        if failed and self.key.write:
            path = f"/v1/memories/{memory.name}/readings/{self.rng.choice(failed).reading}"
            await self.calls.send("retry", self.key, "POST", path, memory, expected={200, 404, 409})

    # --- looking

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
        memory, turns, rng = self.memory(), [], self.rng
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
        taken, made = memory.taken, memory.made
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
            whole = (memory.taken, memory.made) == (taken, made) and taken % 2 == 0 and one in self.responses
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
        await self.calls.send(f"get {what}", self.key, "GET", f"{one}{what}" if about else what, about)

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
        method, path, given = self.rng.choice(
            [
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
        )
        await self.calls.send("trespass", self.key, method, path, expected={404}, **given)

    # --- taking out

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

    # --- memories

    async def make(self) -> None:
        """Make a memory that is not there, or may not be."""
        there = [one for one in self.mine if one.there is not There.YES and not one.held]
        if there and self.key.write:
            memory = self.rng.choice(there)
            with held(memory):
                await make(self.calls, self.key, memory)

    async def remove(self) -> None:
        there = [one for one in self.mine if one.there is There.YES and not one.held]
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
                memory.there = There.MAYBE if gone is None else There.NO if gone else There.YES
                self.oracle.left(leaving, gone)

    async def give_up(self) -> None:
        """Go before the answer comes."""
        await self.rng.choice([self.post, self.put, self.chat, self.respond])(cut=self.rng.uniform(0.005, 0.3))


@contextlib.contextmanager
def held(memory: Shelved) -> Iterator[None]:
    """Let nobody else make or remove a memory."""
    memory.held = True
    try:
        yield
    finally:
        memory.held = False


async def make(calls: Calls, key: Key, memory: Shelved) -> None:
    """Make a memory that is not there, or may not be."""
    earlier = [text for text in memory.texts if not text.writing]
    memory.made += 1
    reply = await calls.send("make", key, "POST", "/v1/memories", json={"name": memory.name}, expected={201, 409})
    memory.made += 1
    if reply is None or reply.status not in (201, 409):
        memory.there = There.MAYBE
    elif reply.code != "memory_busy":
        told = f"{memory.name!r} is there, after it was removed"
        calls.oracle.require(reply.status == 201 or memory.there is There.MAYBE, "not removed", told)
        memory.there = There.YES
        calls.oracle.gone(earlier if reply.status == 201 else (), "as it was made anew")


async def take_out(calls: Calls, key: Key, memory: Shelved, source: str, *, by_tool: bool = False) -> bool:
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
