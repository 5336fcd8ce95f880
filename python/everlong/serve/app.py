"""The service as an ASGI application."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Collection

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from everlong.errors import EverlongError
from everlong.serve import memories, status
from everlong.serve.chat import chat_completions
from everlong.serve.embeddings import embeddings
from everlong.serve.guard import AnswerCutError, Guard
from everlong.serve.mcp_http import McpOverHttp
from everlong.serve.responses import create_response, response
from everlong.serve.service import Service
from everlong.serve.web_page import web_page
from everlong.service_data.errors import ApiError, hide_private_paths, refusal_of

_LOGGER = logging.getLogger("everlong.serve")


_MEMORY = "/v1/memories/{name}"
# Each asks whether the key may: a test calls all of them with a key that may not.
MEMORY_ROUTES = (
    Route(_MEMORY, memories.memory, methods=["GET", "DELETE"]),
    Route(f"{_MEMORY}/sources", memories.sources, methods=["GET", "POST", "DELETE"]),
    Route(f"{_MEMORY}/files/{{file}}", memories.files, methods=["PUT"]),
    Route(f"{_MEMORY}/readings", memories.readings),
    Route(f"{_MEMORY}/readings/{{id}}", memories.reading, methods=["GET", "POST", "DELETE"]),
    Route(f"{_MEMORY}/search", memories.search, methods=["POST"]),
    Route(f"{_MEMORY}/blocks/{{block:int}}", memories.block),
    Route(f"{_MEMORY}/verify", memories.verify, methods=["POST"]),
    Route(f"{_MEMORY}/compact", memories.compact, methods=["POST"]),
    Route(f"{_MEMORY}/export", memories.export),
)


def application(service: Service, hosts: Collection[str] = (), sites: Collection[str] = ()) -> ASGIApp:
    """Return the application of a service, which starts and stops with it. `hosts` and `sites` as in `Guard`."""
    hide_private_paths(service.registry.root)
    mcp = McpOverHttp(service)

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        service.start()
        async with mcp.life():
            yield
        await run_in_threadpool(service.stop)

    routes = [
        Route("/v1/models", status.models),
        Route("/v1/models/{id:path}", status.models),
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/v1/responses", create_response, methods=["POST"]),
        Route("/v1/responses/{id}", response, methods=["GET", "DELETE"]),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        Route("/v1/memories", memories.memories, methods=["GET", "POST"]),
        *MEMORY_ROUTES,
        Route("/metrics", status.metrics),
        Route("/health", status.health),
        Route("/ready", status.ready),
        Route("/", web_page),
        Route("/page/{file}", web_page),
        *mcp.routes,
    ]
    expected = dict.fromkeys(
        (ApiError, EverlongError, OSError, ValueError, TypeError, OverflowError), _refusal_response
    )
    handlers = {**expected, ClientDisconnect: _gone_response, HTTPException: _no_route, Exception: _failure_response}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=life)
    app.router.redirect_slashes = False  # the guard takes them off; a redirect would name the host that a proxy passed
    app.state.service = service
    return Guard(app, service.keys, service.limits, service.metrics, hosts, sites)


async def _refusal_response(request: Request, error: Exception) -> Response:
    return _answer(request, refusal_of(error))


async def _gone_response(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody takes it


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    return _answer(request, ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}", code))


async def _failure_response(request: Request, error: Exception) -> Response:
    if isinstance(error, AnswerCutError):  # it has begun, and there is nothing more to say
        return Response(status_code=499)
    return _answer(request, refusal_of(error), error)


def _answer(request: Request, refusal: ApiError, error: Exception | None = None) -> Response:
    if refusal.status >= 500 and error is not None:
        _LOGGER.error("a request failed", exc_info=error)
    request.app.state.service.metrics.errors.labels(refusal.code or "error").inc()
    return JSONResponse(refusal.body, refusal.status, refusal.headers)
