"""One request at a time: sent, counted, and held against the oracle."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Collection
from typing import Any
from urllib.parse import unquote

import httpx

from everlong.service_data.keys import Key
from support.soak.oracle import Oracle, StoredMemory
from support.soak.server import Server

BUSY = {429, 503, 507}  # what any request may be told
_SECONDS = 180.0


@dataclasses.dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    data: bytes

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.data))

    @property
    def code(self) -> str:
        """The code of an error; "" for none."""
        with contextlib.suppress(ValueError, AttributeError):
            error = self.json.get("error")
            return str(error["code"]) if isinstance(error, dict) else ""
        return ""


class Calls:
    """Sends requests for all callers. While it is paused, or the service is down, they wait."""

    def __init__(self, server: Server, oracle: Oracle) -> None:
        self.server, self.oracle = server, oracle
        self.http = httpx.AsyncClient(
            timeout=_SECONDS, limits=httpx.Limits(max_connections=64), trust_env=False, follow_redirects=False
        )
        self.counted: collections.Counter[tuple[str, str]] = collections.Counter()
        self.go = asyncio.Event()
        self.go.set()
        self.under_way = 0
        self.until = 0.0  # callers begin nothing after that

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wrap what a caller does at once."""
        while not (self.go.is_set() and self.server.up.is_set()):
            await self.go.wait()
            await self.server.up.wait()
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    async def quiet(self) -> None:
        """Pause the callers, and wait until nothing is under way."""
        self.go.clear()
        while self.under_way:
            await asyncio.sleep(0.05)

    async def send(
        self,
        did: str,
        key: Key,
        method: str,
        path: str,
        about: StoredMemory | None = None,
        *,
        expected: Collection[int] = (200,),
        shows: Collection[str] | None = None,
        cut: float | None = None,
        chunks: int | None = None,
        **given: Any,
    ) -> Reply | None:
        """Send a request. None where nobody knows what became of it.

        `about`: the memory that it names, which alone it may show; `shows`: others. `cut`: seconds after which the
        caller goes; `chunks`: so many pieces of a stream, after which he goes.
        """
        await self.server.up.wait()
        life, begun, before = self.server.lives, time.monotonic(), _seen(about)
        headers = {"Authorization": f"Bearer {key.name}", **given.pop("headers", {})}
        data = bytearray()

        async def exchange() -> int:
            async with self.http.stream(method, self.server.url + path, headers=headers, **given) as stream:
                left = chunks
                async for piece in stream.aiter_raw():
                    data.extend(piece)
                    left = None if left is None else left - 1
                    if left == 0:
                        break
                return stream.status_code

        what = f"{did} by {key.name} ({method} {path[:120]})"
        status: int | None = None
        try:
            status = await asyncio.wait_for(exchange(), cut)
        except TimeoutError:
            self.counted[did, "given up"] += 1
        except httpx.TimeoutException:
            self.oracle.fault("no answer", f"{what}: {_SECONDS:g} s")
        except httpx.TransportError as error:
            self.counted[did, "killed"] += 1
            cut_off = did == "export" and _taking(about, before)  # a copy ends when something of it is forgotten
            if not cut_off and not self.server.ending and life == self.server.lives:
                await asyncio.sleep(0.5)
                if not self.server.ending and life == self.server.lives:
                    self.oracle.fault("connection lost", f"{what}: {error!r}")
        allowed = shows if shows is not None else (about.name,) if about else ()
        asked = json.dumps([unquote(path), given.get("params"), given.get("json")]).encode()
        self.oracle.saw(bytes(data), begun, allowed, what, asked)
        if status is None:
            return None
        reply = Reply(status, bytes(data))
        self.counted[did, str(status)] += 1
        absent = status == 404 and reply.code == "memory_not_found" and about is not None
        if absent and about is not None and before is not None:
            stood = before[0] == about.sure and about.sure[1]
            told = f"{what}: {about.name!r} was there all the time: {bytes(data[:300])!r}"
            self.oracle.require(not stood, "memory lost", told)
        if status == 503 and reply.code == "stopping":
            return None  # some of it may have been done
        taking = _taking(about, before)
        changed = status == 409 and reply.code == "memory_changed" and taking
        if not (absent or changed) and status not in BUSY and status not in expected:
            self.oracle.fault("status", f"{what}: {status} {bytes(data[:300])!r}")
        return reply

    async def tool(
        self, did: str, key: Key, about: StoredMemory, tool: str, **arguments: Any
    ) -> tuple[bool, Any] | None:
        """Call a tool of MCP. Return whether it went well, and what it told."""
        params = {"name": tool, "arguments": {"memory": about.name, **arguments}}
        reply = await self.mcp(did, key, about, "tools/call", params)
        if reply is None or reply.status != 200:
            return None
        result = reply.json.get("result", {})
        well = not result.get("isError", True)
        return well, result.get("structuredContent") if well else result.get("content", [{}])[0].get("text", "")

    async def mcp(self, did: str, key: Key, about: StoredMemory, method: str, params: dict[str, Any]) -> Reply | None:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        accept = {"Accept": "application/json, text/event-stream"}
        return await self.send(did, key, "POST", "/mcp", about, json=body, headers=accept)


def _taking(memory: StoredMemory | None, before: Any) -> bool:
    """Return whether something was taken out of a memory since `before`, or is."""
    return memory is not None and (before != _seen(memory) or memory.taking > 0)


def _seen(memory: StoredMemory | None) -> tuple[tuple[int, bool], int] | None:
    """The same before and behind a request: nobody made or removed the memory, or took something out."""
    return None if memory is None else (memory.sure, memory.taken)
