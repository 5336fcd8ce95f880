"""`/v1/embeddings`: vectors of the encoder, as memories search by."""

from __future__ import annotations

import base64
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from everlong.serve.bodies import Fields, json_body
from everlong.serve.errors import ApiError
from everlong.serve.service import Service
from everlong.text.vectors import vectors_of

_MOST = 2048  # texts of one request


async def embeddings(request: Request) -> Response:
    """Return a vector of each text."""
    service: Service = request.app.state.service
    fields = Fields(await json_body(request, service.limits.json_depth))
    model, texts = fields.needed("model"), fields.texts("input", _MOST)
    format = fields.text("encoding_format", "float")
    fields.only("dimensions", (), "the encoder has its own")
    fields.text("user")
    fields.end()
    if service.encoder is None or model != encoder_of(service.encoder):
        raise ApiError(404, f"there is no encoder {model[:80]!r}", "model_not_found", param="model")
    if not texts:
        raise ApiError(400, "input: expected text, or a list of texts", "missing_required_parameter", param="input")
    if format not in ("float", "base64"):
        raise fields.wrong("encoding_format", "float or base64")
    service.keys.require_tokens(request.state.key)
    vectors = await run_in_threadpool(vectors_of, service.encoder, list(texts))
    counted = await run_in_threadpool(service.looking.tokens, texts)
    service.keys.count(request.state.key, counted)
    rows: list[dict[str, Any]] = [
        {
            "object": "embedding",
            "index": number,
            "embedding": base64.b64encode(row.tobytes()).decode() if format == "base64" else row.tolist(),
        }
        for number, row in enumerate(vectors)
    ]
    usage = {"prompt_tokens": counted, "total_tokens": counted}
    return JSONResponse({"object": "list", "data": rows, "model": model, "usage": usage})


def encoder_of(encoder: Any) -> str:
    """Return the name of an encoder among the models."""
    return str(getattr(encoder, "name", type(encoder).__name__))
