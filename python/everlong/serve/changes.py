"""What callers change in a memory. Each waits for its turn without a thread, and every holder hears what is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from everlong.errors import MemoryBusyError
from everlong.memory import Memory
from everlong.memory.where import Where, parse_time, require_tags, seconds
from everlong.serve.readings import Reading
from everlong.serve.service import Service
from everlong.service_data.errors import ApiError
from everlong.service_data.keys import Key
from everlong.service_data.spool import ReadingJob, TextMetadata
from everlong.text.notebook_html import CONVERSATION

_WAIT_SECONDS = 600.0
_LONGEST_NAME = 1000  # characters of a source's name, or of a tag
_PATIENCE, _LOOK_AGAIN = 10.0, 0.2  # seconds that a change waits for another process, and between two attempts
_HEARING_SECONDS = 60.0
T = TypeVar("T")


async def make(service: Service, key: Key, name: str) -> None:
    """Make an empty memory. ApiError 409 where there is one, and for the name of the model."""
    if name == service.loaded.name:
        raise ApiError(409, f"{name!r} is the name of the model without a memory", "memory_exists", param="name")

    def made() -> None:
        if Memory.exists(service.registry.root / name):
            raise ApiError(409, f"there is a memory {name!r} already", "memory_exists", param="name")
        with service.loaded.with_own_tokenizer().opened_memory(service.registry.root / name):
            pass

    async with service.registry.write_lock_async(name):
        await run_in_threadpool(made)
        await _wait_for_holders(service, name)
    service.audit.note(key.name, "make", name)


async def remove(service: Service, key: Key, name: str) -> None:
    """Remove a memory with all that was kept of it."""
    async with service.registry.write_lock_async(name):
        hidden = await run_in_threadpool(service.remove, name)
        await _wait_for_holders(service, name)
    await run_in_threadpool(service.folder.discard, hidden)
    service.audit.note(key.name, "remove", name)


async def forget(service: Service, key: Key, name: str, where: Where) -> int:
    """Forget what `where` says in a memory, and give its bytes back. Return how many blocks and texts it was."""
    async with service.registry.write_lock_async(name):
        try:
            forgotten = await retry_while_busy(lambda: service.forget(name, where))
        except BaseException:  # it may be gone from the memory all the same
            await _wait_for_holders(service, name)
            raise
        if forgotten:
            await _wait_for_holders(service, name)
    service.audit.note(key.name, "forget", name, blocks=forgotten)
    return forgotten


async def compact(service: Service, key: Key, name: str) -> int:
    """Give back the bytes of what was forgotten. Return how many."""

    def compacted() -> int:
        with service.registry.open_writable(name) as opened:
            return opened.compact()

    async with service.copies.acquire(key.name), service.registry.write_lock_async(name):
        freed = await retry_while_busy(compacted)
        service.registry.record_change(name)
    service.audit.note(key.name, "compact", name)
    return freed


def require_names(source: str, tags: tuple[str, ...], happened: str | None) -> None:
    """Raise ValueError, or ApiError, for names and times that none may give."""
    require_tags(tags)
    for field, name in (("source", source), *(("tags", tag) for tag in tags)):
        if len(name) > _LONGEST_NAME:
            raise ApiError(400, f"{field}: expected at most {_LONGEST_NAME} characters", "invalid_value", param=field)
    if source == CONVERSATION:
        why = f"{source!r} is how what was said is listed: expected another name"
        raise ApiError(400, why, "invalid_value", param="source")
    if any(tag.startswith("by:") for tag in tags):
        raise ApiError(400, "tags that begin with 'by:' say who wrote: expected others", "invalid_value", param="tags")
    if happened is not None:
        seconds(parse_time(happened))


def require_capacity(service: Service, key: Key) -> None:
    """Raise ApiError 429 where a key may send no text now."""
    service.readings.require_capacity(key.name)
    service.keys.require_tokens(key)


async def accept_text(
    service: Service,
    key: Key,
    name: str,
    memory_id: str,
    text: str,
    source: str,
    tags: tuple[str, ...],
    happened: str | None = None,
) -> Reading:
    """Accept a text to be read: it is on disk when this returns. ApiError where it may not be.

    `memory_id`: of the memory when the caller was let in.
    """
    require_names(source, tags, happened)
    await run_in_threadpool(require_capacity, service, key)
    metadata = TextMetadata(source, (*tags, *service.tags_of(key)), happened, plain=True)

    def accepted() -> Reading:
        id, file = service.spool.begin("text", key.name, len(text.encode()))
        try:
            with file:
                service.quotas.require_bytes(key)
                file.write(text.encode())
                job = service.spool.accept(id, file, name, key.name, metadata, memory_id)
        except BaseException:
            service.spool.remove(id)
            raise
        return enqueue_reading(service, key, job)

    return await run_in_threadpool(accepted)


def enqueue_reading(service: Service, key: Key, job: ReadingJob) -> Reading:
    """Let an accepted text wait for its turn."""
    found = service.readings.put(job)
    service.audit.note(key.name, "write", job.memory, reading=job.id)
    return found


async def wait_for_attempt(reading: Reading) -> None:
    """Return once a text was read, or could not be for now, or the service ends."""
    try:
        await asyncio.wait([asyncio.wrap_future(reading.tried)], timeout=_WAIT_SECONDS)
    except asyncio.CancelledError:  # the server ends: who waits is told how far it is
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()


async def retry_while_busy(do: Callable[[], T]) -> T:
    """Do something in a thread, and again as long as another process holds the memory, but not for ever."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return await run_in_threadpool(do)
        except MemoryBusyError:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(_LOOK_AGAIN)


async def _wait_for_holders(service: Service, name: str) -> None:
    """Return once no holder has any more of a memory than it has itself."""
    let_go = await run_in_threadpool(service.notify_holders, name)
    await asyncio.wait(list(map(asyncio.wrap_future, let_go)), timeout=_HEARING_SECONDS)
