"""`/v1/memories`: memories are made, looked into, added to, searched and forgotten."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from everlong.memory import Memory
from everlong.memory.where import Where
from everlong.serve import changes
from everlong.serve.bodies import Fields, json_body
from everlong.serve.export import Export
from everlong.serve.fair_semaphore import FairSemaphore
from everlong.serve.readings import Reading
from everlong.serve.service import Service
from everlong.service_data.errors import ApiError
from everlong.service_data.keys import Key
from everlong.service_data.names import file_name, memory_name
from everlong.service_data.spool import TextMetadata

_MOST_GROUPS = 50
_LAST_BLOCK = (1 << 63) - 1  # no block is beyond, and none is that
_MORE_BYTES = 1 << 16  # counted ahead of a body of unknown length


async def memories(request: Request) -> Response:
    """List the memories, or make one."""
    service, key = _of(request)
    if request.method == "POST":
        service.require_write(key)
        fields = Fields(await json_body(request, service.limits.json_depth))
        name = memory_name(fields.needed("name"))
        fields.end()
        service.require(key, name, write=True, new=True)
        await changes.make(service, key, name)
        return JSONResponse({"id": name, "object": "memory"}, 201)
    names = await run_in_threadpool(service.visible, key)
    return JSONResponse({"object": "list", "data": [{"id": name, "object": "memory"} for name in names]})


async def memory(request: Request) -> Response:
    """Tell what a memory holds, or remove all of it."""
    service, key, name = _in_memory(request, write=request.method == "DELETE")
    if request.method == "DELETE":
        await changes.remove(service, key, name)
        return JSONResponse({"id": name, "object": "memory", "deleted": True})
    return JSONResponse({"id": name, **await _look(service, key, name, service.inspector.overview)})


async def sources(request: Request) -> Response:
    """List the sources of a memory, add a text, or forget one."""
    service, key, name = _in_memory(request, write=request.method != "GET")
    if request.method == "GET":
        after, limit = _page(request)
        return JSONResponse(
            await _look(service, key, name, lambda opened: service.inspector.page_of_sources(opened, after, limit))
        )
    if request.method == "DELETE":
        return await _forget(request, service, key, name)
    memory_id = await run_in_threadpool(service.registry.id, name)
    fields = Fields(await json_body(request, service.limits.json_depth))
    text, source = fields.needed("text"), fields.needed("source")
    tags, happened = fields.texts("tags", 64, empty=True), fields.text("happened")
    wait = fields.flag("wait", False)
    fields.end()
    accepted = await changes.accept_text(service, key, name, memory_id, text, source, tags, happened)
    return await _reading_response(accepted, wait=wait)


async def files(request: Request) -> Response:
    """Add a file, whose bytes are the body."""
    service, key, name = _in_memory(request, write=True)
    file, asked = file_name(request.path_params["file"]), request.query_params
    if unknown := sorted(set(asked) - {"source", "tag", "happened", "wait"}):
        raise ApiError(400, f"{unknown[0]} is not supported here", "unsupported_parameter", param=unknown[0])
    tags, happened, wait = tuple(asked.getlist("tag")), asked.get("happened"), asked.get("wait", "false") == "true"
    if asked.get("wait", "false") not in ("true", "false"):
        raise ApiError(400, "wait: expected true or false", "invalid_value", param="wait")
    changes.require_names(asked.get("source", ""), tags, happened)
    expected = int(request.headers.get("content-length", "0"))
    await run_in_threadpool(changes.require_capacity, service, key)
    spool, memory_id = service.spool, await run_in_threadpool(service.registry.id, name)
    id, written = await run_in_threadpool(spool.begin, file, key.name, expected)
    try:
        with written:
            await run_in_threadpool(service.quotas.require_bytes, key)
            sent = 0
            async for chunk in request.stream():
                sent += len(chunk)
                if sent > expected:  # nothing was said before of how many come
                    expected = sent + _MORE_BYTES
                    spool.expect(id, expected)
                    await run_in_threadpool(service.quotas.require_bytes, key)
                await run_in_threadpool(written.write, chunk)
            metadata = TextMetadata(asked.get("source", ""), (*tags, *service.tags_of(key)), happened)
            job = await run_in_threadpool(spool.accept, id, written, name, key.name, metadata, memory_id)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await run_in_threadpool(spool.remove, id)
        raise
    return await _reading_response(await run_in_threadpool(changes.enqueue_reading, service, key, job), wait=wait)


async def readings(request: Request) -> Response:
    """List the readings of a memory."""
    service, key, name = _in_memory(request)
    async with service.looks.acquire(key.name):
        found = await run_in_threadpool(service.readings.of, name)
    return JSONResponse({"object": "list", "data": [one.fields() for one in found]})


async def reading(request: Request) -> Response:
    """Tell how far a reading is, end it, or try one that failed again."""
    service, key, name = _in_memory(request, write=request.method != "GET")
    async with service.looks.acquire(key.name):
        found = await run_in_threadpool(service.readings.one, name, request.path_params["id"])
    if request.method == "DELETE":
        await run_in_threadpool(service.readings.cancel, found)
        service.audit.note(key.name, "cancel", name, reading=found.job.id)
    elif request.method == "POST":
        service.keys.require_tokens(key)
        found = await run_in_threadpool(service.readings.retry, found)
        service.audit.note(key.name, "retry", name, reading=found.job.id)
    return JSONResponse(found.fields())


async def search(request: Request) -> Response:
    """Find passages, without the model."""
    service, key, name = _in_memory(request)
    fields = Fields(await json_body(request, service.limits.json_depth))
    query, most = fields.needed("query"), fields.whole("max_results", 1, _MOST_GROUPS) or 8
    sources_, tags = fields.texts("source", 64), fields.texts("tags", 64)
    fields.end()
    where = Where(source=sources_, tags=tags)
    found = await _look(service, key, name, lambda opened: service.inspector.search(opened, query, most, where))
    service.audit.note(key.name, "search", name, blocks=[one["block_id"] for one in found])
    return JSONResponse({"object": "list", "data": found})


async def block(request: Request) -> Response:
    """Return a block with its neighbours."""
    service, key, name = _in_memory(request)
    number = min(request.path_params["block"], _LAST_BLOCK)
    found = await _look(service, key, name, lambda opened: service.inspector.passage(opened, number))
    service.audit.note(key.name, "read", name, blocks=[number])
    return JSONResponse(found)


async def verify(request: Request) -> Response:
    """Read a memory back against every checksum."""
    service, key, name = _in_memory(request)
    report = await _look(service, key, name, lambda opened: dataclasses.asdict(opened.verify()), service.copies)
    service.audit.note(key.name, "verify", name)
    return JSONResponse({"object": "memory.verification", **report})


async def compact(request: Request) -> Response:
    """Give back the bytes of what was forgotten."""
    service, key, name = _in_memory(request, write=True)
    freed = await changes.compact(service, key, name)
    return JSONResponse({"object": "memory.compaction", "bytes": freed})


async def export(request: Request) -> Response:
    """Return a memory as one file, which `Memory.import_file` reads."""
    service, key, name = _in_memory(request)
    return Export(service, key, name)


def _page(request: Request) -> tuple[int, int | None]:
    """Return what a page of a list comes after, and how many it may have; all without `limit`. ApiError."""
    asked = request.query_params
    if unknown := sorted(set(asked) - {"after", "limit"}):
        raise ApiError(400, f"{unknown[0]} is not supported here", "unsupported_parameter", param=unknown[0])
    for name, least in (("after", 0), ("limit", 1)):
        text = asked.get(name, "1")
        if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) >= least):
            raise ApiError(400, f"{name}: expected a whole number from {least} on", "invalid_value", param=name)
    return int(asked.get("after", "0")), int(asked["limit"]) if "limit" in asked else None


async def _forget(request: Request, service: Service, key: Key, name: str) -> Response:
    asked = request.query_params
    if unknown := sorted(set(asked) - {"source", "origin", "tag"}):
        raise ApiError(400, f"{unknown[0]} is not supported here", "unsupported_parameter", param=unknown[0])
    if not asked:
        raise ApiError(400, "name a source, an origin or a tag", "missing_required_parameter", param="source")
    source = asked.get("source")
    where = Where(
        source=() if source is None else (source,), tags=asked.getlist("tag") or (), origin=asked.get("origin")
    )
    forgotten = await changes.forget(service, key, name, where)
    if forgotten == 0:
        raise ApiError(404, f"{name!r} has nothing of that name", "source_not_found", param="source")
    return JSONResponse({"object": "memory.forgotten", "blocks": forgotten})


async def _reading_response(reading: Reading, *, wait: bool) -> Response:
    """Return the answer to who sent a text: as it is now, or once it was tried."""
    if wait:
        await changes.wait_for_attempt(reading)
    code = {"done": 200, "failed": 422, "cancelled": 409}.get(reading.state, 202)
    return JSONResponse(reading.fields(), code if wait else 202)


def _of(request: Request) -> tuple[Service, Key]:
    return request.app.state.service, request.state.key


def _in_memory(request: Request, *, write: bool = False) -> tuple[Service, Key, str]:
    """Return the service, whose request it is, and the memory's name. ApiError where the key may not."""
    service, key = _of(request)
    name = request.path_params["name"]
    service.require(key, name, write=write)
    return service, key, name


async def _look(
    service: Service, key: Key, name: str, look: Callable[[Memory], Any], shares: FairSemaphore | None = None
) -> Any:
    def looked() -> Any:
        with service.registry.open_read_only(name) as opened:
            return look(opened)

    async with (shares or service.looks).acquire(key.name):
        return await run_in_threadpool(looked)
