"""What an agent may do with memories, as tools of the Model Context Protocol. Every result cites."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.mcpserver.resources import ResourceSecurity
from mcp.types import ToolAnnotations
from starlette.concurrency import run_in_threadpool

from everlong.memory import Memory
from everlong.memory.sources import source_meant
from everlong.memory.where import Where
from everlong.serve import changes
from everlong.serve.answering import AnswerRequest
from everlong.serve.inspector import MemoryInspector
from everlong.serve.mcp_resources import SCHEME, listing_resources
from everlong.serve.response_fields import everlong_field
from everlong.serve.service import Service
from everlong.service_data.errors import ApiError, refusal_of
from everlong.service_data.keys import Key
from everlong.service_data.memory_registry import MemoryRegistry, no_memory

_SAYS = (
    "Memories of texts. `sources` lists memories, and what one holds. `recall` finds passages and says where each "
    "stands: cite source and place. `remember` adds a text, `forget` removes one. `ask` lets the memory's own model "
    "answer."
)
T = TypeVar("T")
_MOST = 20
_Context = Context[Any, Any]
_LOOK_AGAIN = 0.5  # seconds between two looks whether a caller has gone
Gone = Callable[[], Awaitable[bool]]


class Tools:
    """The tools' work, by a service, or without a model: then nothing is remembered and asked. Thread-safe."""

    def __init__(
        self,
        registry: MemoryRegistry,
        inspector: MemoryInspector,
        key_of: Callable[[Any], Key],
        service: Service | None,
    ) -> None:
        """`key_of` returns who asks, by a request over HTTP; by None, of standard input and output."""
        self.registry, self.inspector, self.service = registry, inspector, service
        self.key_of_request = key_of

    def key_of(self, context: _Context) -> Key:
        return self.key_of_request(context.request_context.request)

    def require(self, key: Key, memory: str, *, write: bool = False) -> None:
        """Raise ApiError where the key may not see a memory, or write to it."""
        self.registry.existing_folder(memory)
        if not key.may_see(memory):
            raise no_memory(memory)
        if write and not key.write:
            raise ApiError(403, "only reading is allowed here", "read_only_key")

    def with_model(self) -> Service:
        if self.service is None:
            raise ApiError(400, "there is no model here: `everlong mcp --model NAME` loads one", "no_model")
        return self.service

    async def look(self, key: Key, memory: str, look: Callable[[Memory], Any]) -> Any:
        self.require(key, memory)

        def looked() -> Any:
            with self.registry.open_read_only(memory) as opened:
                return look(opened)

        async with contextlib.nullcontext() if self.service is None else self.service.looks.acquire(key.name):
            return await run_in_threadpool(looked)

    async def listed(self, key: Key, memory: str) -> dict[str, Any]:
        if not memory:
            return {"memories": [name for name in self.registry.names() if key.may_see(name)]}
        return {"memory": memory, "sources": await self.look(key, memory, self.inspector.sources)}

    async def recall(self, key: Key, memory: str, question: str, most: int) -> dict[str, Any]:
        most = min(max(most, 1), _MOST)
        found = await self.look(key, memory, lambda opened: self.inspector.search(opened, question, most))
        if self.service is not None:
            self.service.audit.note(key.name, "search", memory, blocks=[one["block_id"] for one in found])
        return {"memory": memory, "passages": found}

    async def remember(self, key: Key, memory: str, text: str, source: str, tags: list[str]) -> dict[str, Any]:
        service = self.with_model()
        service.require(key, memory, write=True)
        memory_id = await run_in_threadpool(service.registry.id, memory)
        reading = await changes.accept_text(service, key, memory, memory_id, text, source, tuple(tags))
        await changes.wait_for_attempt(reading)
        if reading.state == "waiting" and service.folder.is_passing:  # nobody reads it once this client has gone
            await run_in_threadpool(service.readings.cancel, reading)
            raise ApiError(503, f"the text could not be read: {reading.error}", "reading_failed")
        if reading.state == "failed":
            raise ApiError(400, reading.error or "the text could not be read", "reading_failed")
        fields = {"memory": memory, "source": source, "status": reading.state, **(reading.report or {})}
        return fields if reading.error is None else {**fields, "waits_because": reading.error}

    async def forget(self, key: Key, memory: str, source: str) -> dict[str, Any]:
        self.require(key, memory, write=True)
        if self.service is not None:
            blocks = await changes.forget(self.service, key, memory, Where(source=source))
        else:
            blocks = await changes.retry_while_busy(lambda: self._forget(memory, source))
        return {"memory": memory, "source": source, "blocks": blocks}

    def _forget(self, memory: str, source: str) -> int:
        with self.registry.open_writable(memory) as opened:
            blocks = opened.forget(source=source_meant(opened, source))
            opened.compact()
        return blocks

    async def ask(self, key: Key, memory: str, question: str, tokens: int, gone: Gone) -> dict[str, Any]:
        service = self.with_model()
        most = min(max(tokens, 1), service.limits.answer_tokens)
        job = service.ask(key, AnswerRequest(memory, ({"role": "user", "content": question},), most))
        result = asyncio.ensure_future(job.result())
        try:
            while not (await asyncio.wait([result], timeout=_LOOK_AGAIN))[0]:
                if await gone():
                    job.cancel()
            answer = result.result()
        finally:
            job.cancel()
            result.cancel()
        return {"answer": answer.text, **everlong_field(memory, answer)}

    async def text_of(self, key: Key, memory: str, source: str) -> str:
        def text(opened: Memory) -> str:
            found = opened.blocks(source_meant(opened, source))
            if not found:
                raise ApiError(404, f"{memory!r} has no source {source!r}", "source_not_found")
            return "".join(self.inspector.text(opened, block.id) for block in sorted(found, key=lambda one: one.span))

        return str(await self.look(key, memory, text))


def mcp_server(tools: Tools) -> MCPServer[Any]:
    """Return the server with all tools, and the sources as resources."""
    server: MCPServer[Any] = MCPServer(
        "everlong", instructions=_SAYS, log_level="WARNING", middleware=[listing_resources(tools)]
    )
    looks = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    adds = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
    removes = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)

    @server.tool(annotations=looks)
    async def sources(ctx: _Context, memory: str = "") -> dict[str, Any]:
        """List what a memory was told, by source; without a memory, list the memories."""
        return await _tried(tools.listed, tools.key_of(ctx), memory)

    @server.tool(annotations=looks)
    async def recall(ctx: _Context, memory: str, question: str, max_results: int = 8) -> dict[str, Any]:
        """Find the passages of a memory that are nearest to a question, each with its source and place."""
        return await _tried(tools.recall, tools.key_of(ctx), memory, question, max_results)

    @server.tool(annotations=adds)
    async def remember(
        ctx: _Context, memory: str, text: str, source: str, tags: list[str] | None = None
    ) -> dict[str, Any]:
        """Read a text into a memory, under the name by which it is cited. It stays until it is forgotten."""
        return await _tried(tools.remember, tools.key_of(ctx), memory, text, source, tags or [])

    @server.tool(annotations=removes)
    async def forget(ctx: _Context, memory: str, source: str) -> dict[str, Any]:
        """Remove a source from a memory for good."""
        return await _tried(tools.forget, tools.key_of(ctx), memory, source)

    @server.tool(annotations=looks)
    async def ask(ctx: _Context, memory: str, question: str, max_tokens: int = 256) -> dict[str, Any]:
        """Let the memory's own model answer a question, with what came back for it."""
        return await _tried(tools.ask, tools.key_of(ctx), memory, question, max_tokens, _gone_of(ctx))

    # A source's name is no path: no file is opened by it. It may have slashes, and need not spell them out.
    unchecked = ResourceSecurity(exempt_params={"source"})

    @server.resource(f"{SCHEME}{{memory}}/{{+source}}", mime_type="text/plain", security=unchecked)
    async def source(memory: str, source: str, ctx: _Context) -> str:
        """The text of a source."""
        return await _tried(tools.text_of, tools.key_of(ctx), memory, source, wrong=ResourceError)

    return server


def _gone_of(context: _Context) -> Gone:
    """Return what tells whether the caller has gone. One of standard input and output goes with the process."""
    request: Any = context.request_context.request

    async def gone() -> bool:
        return request is not None and await request.is_disconnected()

    return gone


async def _tried(does: Callable[..., Awaitable[T]], *args: Any, wrong: type[Exception] = ToolError) -> T:
    """Do something. An error of MCP's, `wrong`, says what went wrong, and nothing else."""
    try:
        return await does(*args)
    except Exception as error:
        raise wrong(refusal_of(error).message) from None
