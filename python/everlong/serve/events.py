"""Server-sent events: an answer as it is made, until the caller has gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from everlong.serve.engine import Job, JobEnd
from everlong.service_data.errors import ApiError


class Events(Response):
    """A stream of events. `gone` is called as soon as the caller has gone, and at the end."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], gone: Callable[[], None]) -> None:
        super().__init__()
        self._events, self._gone = events, gone
        self.raw_headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        watching = asyncio.create_task(_disconnected(receive))
        watching.add_done_callback(lambda _: self._gone())
        try:
            async for event in self._events:
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            watching.cancel()
            self._gone()


async def whole(request: Request, job: Job) -> Any:
    """Return what a job returns. It is cancelled when the caller goes."""
    with _watched(request, job):
        return await job.result()


async def first_event(request: Request, job: Job) -> Any:
    """Return the first thing that a job tells, so that a refusal has a status of its own.

    The job is cancelled when the caller goes by then: it may wait for long before it tells anything.
    """
    with _watched(request, job):
        return await job.next()


@contextlib.contextmanager
def _watched(request: Request, job: Job) -> Iterator[None]:
    """Wrap what waits for a job, which is cancelled when the caller goes."""

    def done(task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            job.cancel()

    watching = asyncio.create_task(_disconnected(request.receive))
    watching.add_done_callback(done)
    try:
        yield
    except asyncio.CancelledError:  # the server gives the request up
        job.cancel()
        raise
    finally:
        watching.cancel()


async def pieces(first: Any, job: Job) -> AsyncIterator[Any]:
    """Yield what a job tells, from `first` on, the `JobEnd` last."""
    told = first
    while not isinstance(told, JobEnd):
        if told:
            yield told
        told = await job.next()
    yield told


def event(data: Any, name: str = "") -> str:
    """Return an event as it is sent."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n"


def failed(error: ApiError) -> str:
    """Return the event of an answer that failed after it began."""
    return event(error.body)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
