"""`/v1/embeddings`: vectors of the encoder, as memories search by."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from everlong.serve.bodies import Fields, json_body
from everlong.serve.service import Service
from everlong.service_data.errors import ApiError
from everlong.text.vectors import vectors_of

_MOST = 2048  # texts of one request
# Texts that are encoded in one go, by number and bytes. Between two goes others have theirs.
_AT_ONCE, _BYTES_AT_ONCE = 32, 1 << 14


async def embeddings(request: Request) -> Response:
    """Return a vector of each text."""
    service: Service = request.app.state.service
    fields = Fields(await json_body(request, service.limits.json_depth))
    model, texts = fields.needed("model"), fields.texts("input", _MOST, empty=True)
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
    key, most = request.state.key, service.limits.embedded_bytes
    if sum(len(text.encode()) for text in texts) > most:
        raise ApiError(413, f"input: expected at most {most:,} bytes in all", "input_too_large", param="input")
    service.keys.require_tokens(key)
    counted, found = 0, []
    for some in _in_turns(texts):
        if await request.is_disconnected():
            return Response(status_code=499)
        async with service.encoding.acquire(key.name):
            tokens = await run_in_threadpool(service.inspector.tokens, some)
            service.keys.count(key, tokens)  # before the work: it is done whether or not the caller waits for it
            found.append(await run_in_threadpool(vectors_of, service.encoder, list(some)))
        counted += tokens
    vectors = np.concatenate(found)
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


def _in_turns(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the texts a few at a time, in order."""
    first = size = 0
    for number, text in enumerate(texts):
        size += len(text.encode())
        if number > first and (number - first >= _AT_ONCE or size > _BYTES_AT_ONCE):
            yield texts[first:number]
            first, size = number, len(text.encode())
    yield texts[first:]


def encoder_of(encoder: Any) -> str:
    """Return the name of an encoder among the models."""
    return str(getattr(encoder, "name", type(encoder).__name__))
