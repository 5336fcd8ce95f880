"""What others ask of a service itself: its models, its health, what it counts."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from everlong.serve.embeddings import encoder_of
from everlong.serve.service import Service
from everlong.service_data.errors import ApiError


async def models(request: Request) -> Response:
    """List the models: the one without a memory, one for each memory, and the encoder."""
    service: Service = request.app.state.service
    rows = [_model(name) for name in await run_in_threadpool(_models, request)]
    if "id" not in request.path_params:
        return JSONResponse({"object": "list", "data": rows})
    for row in rows:
        if row["id"] == request.path_params["id"]:
            return JSONResponse(row)
    name = str(request.path_params["id"])[:80]
    raise ApiError(404, f"{service.loaded.name} has no model {name!r}", "model_not_found", param="model")


async def health(request: Request) -> Response:
    """Say that the process answers."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Say whether questions are answered."""
    service: Service = request.app.state.service
    return JSONResponse({"status": "ready" if service.ready else "stopping"}, 200 if service.ready else 503)


async def metrics(request: Request) -> Response:
    """Return what Prometheus reads."""
    service: Service = request.app.state.service
    text = await run_in_threadpool(service.metrics.text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _models(request: Request) -> list[str]:
    service: Service = request.app.state.service
    encoder = [] if service.encoder is None else [encoder_of(service.encoder)]
    return [service.loaded.name, *service.visible(request.state.key), *encoder]


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "everlong"}
