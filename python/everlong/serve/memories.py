"""`/v1/memories`: memories are made, looked into, added to, searched and forgotten."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from everlong.memory import Memory
from everlong.memory.where import EVERYWHERE, Where, parse_time, require_tags
from everlong.serve.bodies import Fields, json_body
from everlong.serve.errors import ApiError
from everlong.serve.keys import Key
from everlong.serve.names import file_name, memory_name
from everlong.serve.readings import Reading
from everlong.serve.service import Service
from everlong.serve.spool import Named, Order
from everlong.text.notebook import CONVERSATION

_MOST_GROUPS = 50
_WAIT_SECONDS = 600.0


async def memories(request: Request) -> Response:
    """List the memories, or make one."""
    service, key = _of(request)
    if request.method == "POST":
        service.require_write(key)
        fields = Fields(await json_body(request, service.limits.json_depth))
        name = memory_name(fields.needed("name"))
        fields.end()
        service.require(key, name, write=True, new=True)
        await run_in_threadpool(_make, service, name)
        service.audit.note(key.name, "make", name)
        return JSONResponse({"id": name, "object": "memory"}, 201)
    names = await run_in_threadpool(service.visible, key)
    return JSONResponse({"object": "list", "data": [{"id": name, "object": "memory"} for name in names]})


async def memory(request: Request) -> Response:
    """Tell what a memory holds, or remove all of it."""
    service, key, name = _in_memory(request, write=request.method == "DELETE")
    if request.method == "DELETE":
        await run_in_threadpool(service.shelf.remove, name)
        service.audit.note(key.name, "remove", name)
        return JSONResponse({"id": name, "object": "memory", "deleted": True})
    return JSONResponse({"id": name, **await _look(service, name, service.looking.overview)})


async def sources(request: Request) -> Response:
    """List the sources of a memory, add a text, or forget one."""
    service, key, name = _in_memory(request, write=request.method != "GET")
    if request.method == "GET":
        found = await _look(service, name, service.looking.sources)
        return JSONResponse({"object": "list", "data": found})
    if request.method == "DELETE":
        return await _forget(request, service, key, name)
    fields = Fields(await json_body(request, service.limits.json_depth))
    text, source = fields.needed("text"), fields.needed("source")
    tags, happened = fields.texts("tags", 64), fields.text("happened")
    wait = fields.flag("wait", False)
    fields.end()
    _require_names(tags, happened)
    await run_in_threadpool(service.require_bytes, key, len(text.encode()))
    named = Named(source, (*tags, *service.tags_of(key)), happened, plain=True)

    def accept() -> Order:
        id, file = service.readings.spool.begin("text.txt")
        file.write(text.encode())
        return service.readings.spool.accept(id, file, name, key.name, named)

    return await _begin(service, key, await run_in_threadpool(accept), wait=wait)


async def files(request: Request) -> Response:
    """Add a file, whose bytes are the body."""
    service, key, name = _in_memory(request, write=True)
    file, asked = file_name(request.path_params["file"]), request.query_params
    if unknown := sorted(set(asked) - {"source", "tag", "happened", "wait"}):
        raise ApiError(400, f"{unknown[0]} is not supported here", "unsupported_parameter", param=unknown[0])
    tags, happened = tuple(asked.getlist("tag")), asked.get("happened")
    _require_names(tags, happened)
    await run_in_threadpool(service.require_bytes, key, int(request.headers.get("content-length", "0")))
    spool = service.readings.spool
    id, written = await run_in_threadpool(spool.begin, file)
    try:
        async for chunk in request.stream():
            await run_in_threadpool(written.write, chunk)
    except BaseException:
        written.close()
        spool.remove(id)
        raise
    named = Named(asked.get("source", ""), (*tags, *service.tags_of(key)), happened)
    order = await run_in_threadpool(lambda: spool.accept(id, written, name, key.name, named))
    return await _begin(service, key, order, wait=asked.get("wait") == "true")


async def readings(request: Request) -> Response:
    """List the readings of a memory."""
    service, _, name = _in_memory(request)
    return JSONResponse({"object": "list", "data": [one.told() for one in service.readings.of(name)]})


async def reading(request: Request) -> Response:
    """Tell how far a reading is, or end it."""
    service, key, name = _in_memory(request, write=request.method == "DELETE")
    found = service.readings.one(name, request.path_params["id"])
    if request.method == "DELETE":
        found.cancelled = True
        service.audit.note(key.name, "cancel", name, reading=found.order.id)
    return JSONResponse(found.told())


async def search(request: Request) -> Response:
    """Find passages, without the model."""
    service, key, name = _in_memory(request)
    fields = Fields(await json_body(request, service.limits.json_depth))
    query, most = fields.needed("query"), fields.whole("max_results", 1, _MOST_GROUPS) or 8
    sources_, tags = fields.texts("source", 64), fields.texts("tags", 64)
    fields.end()
    where = Where(source=sources_, tags=tags) if sources_ or tags else EVERYWHERE
    found = await _look(service, name, lambda opened: service.looking.search(opened, query, most, where))
    service.audit.note(key.name, "search", name, blocks=[one["block_id"] for one in found])
    return JSONResponse({"object": "list", "data": found})


async def block(request: Request) -> Response:
    """Return a block with its neighbours."""
    service, key, name = _in_memory(request)
    number = request.path_params["block"]
    found = await _look(service, name, lambda opened: service.looking.passage(opened, number))
    service.audit.note(key.name, "read", name, blocks=[number])
    return JSONResponse(found)


async def verify(request: Request) -> Response:
    """Read a memory back against every checksum."""
    service, key, name = _in_memory(request)
    report = await _look(service, name, lambda opened: dataclasses.asdict(opened.verify()))
    service.audit.note(key.name, "verify", name)
    return JSONResponse({"object": "memory.verification", **report})


async def compact(request: Request) -> Response:
    """Give back the bytes of what was forgotten."""
    service, key, name = _in_memory(request, write=True)

    def compacted() -> int:
        with service.shelf.changing(name) as opened:
            return opened.compact()

    freed = await run_in_threadpool(compacted)
    service.audit.note(key.name, "compact", name)
    return JSONResponse({"object": "memory.compaction", "bytes": freed})


async def export(request: Request) -> Response:
    """Return a memory as one file, which `Memory.import_file` reads."""
    service, key, name = _in_memory(request)
    folder = tempfile.mkdtemp(dir=service.shelf.own)
    file = Path(folder) / f"{name}.everlong"

    def remove() -> None:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
            os.rmdir(folder)

    try:
        await _look(service, name, lambda opened: opened.export(file))
    except BaseException:
        remove()
        raise
    service.audit.note(key.name, "export", name)
    return FileResponse(file, filename=file.name, background=BackgroundTask(remove))


def forget(service: Service, key: Key, name: str, where: Where) -> int:
    """Forget what `where` says in a memory, and give its bytes back. Return how many blocks it was."""
    with service.shelf.changing(name, gone=True) as opened:
        forgotten = opened.forget(where=where)
        opened.compact()
    service.audit.note(key.name, "forget", name, blocks=forgotten)
    return forgotten


async def _forget(request: Request, service: Service, key: Key, name: str) -> Response:
    asked = request.query_params
    if unknown := sorted(set(asked) - {"source", "origin", "tag"}):
        raise ApiError(400, f"{unknown[0]} is not supported here", "unsupported_parameter", param=unknown[0])
    if not asked:
        raise ApiError(400, "name a source, an origin or a tag", "missing_required_parameter", param="source")
    source = asked.get("source")
    # What was said has no source: it is listed under a name of its own.
    named = "" if source == CONVERSATION else source
    where = Where(source=() if named is None else (named,), tags=asked.getlist("tag") or (), origin=asked.get("origin"))
    forgotten = await run_in_threadpool(forget, service, key, name, where)
    if forgotten == 0:
        raise ApiError(404, f"{name!r} has nothing of that name", "source_not_found", param="source")
    return JSONResponse({"object": "memory.forgotten", "blocks": forgotten})


async def _begin(service: Service, key: Key, order: Order, *, wait: bool) -> Response:
    found = service.readings.put(order)
    service.audit.note(key.name, "write", order.memory, reading=order.id)
    if not wait:
        return JSONResponse(found.told(), 202)
    await run_in_threadpool(found.over.wait, _WAIT_SECONDS)
    return JSONResponse(found.told(), 200 if found.state == "done" else 202 if not found.error else 422)


def read_and_wait(service: Service, key: Key, name: str, text: str, source: str, tags: tuple[str, ...]) -> Reading:
    """Read a text, and return once that is over."""
    service.require_bytes(key, len(text.encode()))
    _require_names(tags, None)
    spool = service.readings.spool
    id, file = spool.begin("text.txt")
    file.write(text.encode())
    named = Named(source, (*tags, *service.tags_of(key)), plain=True)
    found = service.readings.put(spool.accept(id, file, name, key.name, named))
    service.audit.note(key.name, "write", name, reading=found.order.id)
    found.over.wait(_WAIT_SECONDS)
    return found


def _make(service: Service, name: str) -> None:
    if name == service.loaded.name:
        raise ApiError(409, f"{name!r} is the name of the model without a memory", "memory_exists", param="name")
    with service.shelf.writing(name) as folder:
        if Memory.exists(folder):
            raise ApiError(409, f"there is a memory {name!r} already", "memory_exists", param="name")
        with service.loaded.for_another_thread().opened(folder):
            pass
    service.shelf.changed(name)


def _require_names(tags: tuple[str, ...], happened: str | None) -> None:
    require_tags(tags)
    if any(tag.startswith("by:") for tag in tags):
        raise ApiError(400, "tags that begin with 'by:' say who wrote: expected others", "invalid_value", param="tags")
    if happened is not None:
        parse_time(happened)


def _of(request: Request) -> tuple[Service, Key]:
    return request.app.state.service, request.state.key


def _in_memory(request: Request, *, write: bool = False) -> tuple[Service, Key, str]:
    """Return the service, whose request it is, and the memory's name. ApiError where the key may not."""
    service, key = _of(request)
    name = request.path_params["name"]
    service.require(key, name, write=write)
    return service, key, name


async def _look(service: Service, name: str, look: Callable[[Memory], Any]) -> Any:
    def looked() -> Any:
        with service.shelf.looking(name) as opened:
            return look(opened)

    return await run_in_threadpool(looked)
