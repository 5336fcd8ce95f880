"""`/v1/chat/completions`."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from everlong.serve import response_fields
from everlong.serve.answering import AnswerRequest, AnswerResult
from everlong.serve.bodies import Fields, json_body
from everlong.serve.engine import Job, JobEnd
from everlong.serve.events import Events, event, failed, first_event, pieces, whole
from everlong.serve.request_parsing import answer_request_of, memory_of, messages_of
from everlong.serve.service import Service
from everlong.service_data.errors import ApiError, refusal_of


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    fields = Fields(await json_body(request, service.limits.json_depth))
    model = fields.needed("model")
    stream = fields.flag("stream", False)
    options = fields.inner("stream_options")
    with_usage = options.flag("include_usage", False)
    options.flag("include_obfuscation", False)
    options.end()
    answer_request = _request(service, fields, model, stream=stream)
    job = service.ask(request.state.key, answer_request)
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
    if not stream:
        return JSONResponse(_completion(head, answer_request, await whole(request, job)))
    return Events(
        _chunks(head, answer_request, await first_event(request, job), job, with_usage=with_usage), job.cancel
    )


def _request(service: Service, fields: Fields, model: str, *, stream: bool) -> AnswerRequest:
    messages = messages_of(fields.take("messages"), "messages")
    most = service.limits.answer_tokens
    older, newer = fields.tokens("max_tokens", most), fields.tokens("max_completion_tokens", most)
    answer_request = answer_request_of(
        fields, memory_of(model, service.loaded.name), messages, newer or older, service.limits
    )
    fields.only("n", (1,), "a memory gives one answer")
    for penalty in ("presence_penalty", "frequency_penalty"):
        fields.only(penalty, (0,), "answers have no penalties")
    fields.only("logit_bias", ({},), "answers have no biases")
    scores, top = fields.flag("logprobs", False), fields.whole("top_logprobs", 0, 20)
    if scores and stream:
        raise ApiError(400, "logprobs is not supported with stream", "unsupported_parameter", param="logprobs")
    if top is not None and not scores:
        raise ApiError(400, "top_logprobs needs logprobs", "invalid_value", param="top_logprobs")
    fields.only("tools", ([],), "a memory calls no tools")
    fields.only("tool_choice", ("none", "auto"), "a memory calls no tools")
    fields.only("parallel_tool_calls", (True, False), "a memory calls no tools")
    fields.only("response_format", ({"type": "text"},), "an answer is text")
    fields.only("modalities", (["text"],), "an answer is text")
    fields.only("store", (False,), "/v1/responses keeps answers")
    fields.only("metadata", ({},), "answers of /v1/chat/completions are not kept")
    fields.only("service_tier", ("auto", "default"), "there is one tier")
    for hint in ("prompt_cache_key", "safety_identifier"):  # what they are for, a memory does by itself
        fields.text(hint)
    fields.end()
    return dataclasses.replace(answer_request, scores=top or 0) if scores else answer_request


def _completion(head: dict[str, Any], request: AnswerRequest, answer: AnswerResult) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": answer.text,
        "refusal": None,
        "annotations": _annotations(request, answer),
    }
    scored = None if request.scores is None else {"content": [one.fields() for one in answer.scored], "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": response_fields.finish_of(answer), "logprobs": scored}
    return {
        **head,
        "object": "chat.completion",
        "choices": [choice],
        "usage": _usage(answer),
        "everlong": response_fields.everlong_field(request.memory, answer),
    }


async def _chunks(
    head: dict[str, Any], request: AnswerRequest, first: Any, job: Job, *, with_usage: bool
) -> AsyncIterator[str]:
    head = {**head, "object": "chat.completion.chunk"}

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return event({**head, "choices": [choice], **({"usage": None} if with_usage else {}), **more})

    yield chunk({"role": "assistant", "content": ""})
    try:
        async for piece in pieces(first, job):
            if not isinstance(piece, JobEnd):
                yield chunk({"content": piece})
                continue
            answer: AnswerResult = piece.value
            delta = {"annotations": _annotations(request, answer)} if answer.recalled else {}
            yield chunk(
                delta,
                response_fields.finish_of(answer),
                everlong=response_fields.everlong_field(request.memory, answer),
            )
            if with_usage:
                yield event({**head, "choices": [], "usage": _usage(answer)})
            yield event("[DONE]")
    except ApiError as error:
        yield failed(error)
    except Exception as error:
        yield failed(refusal_of(error))


def _annotations(request: AnswerRequest, answer: AnswerResult) -> list[dict[str, Any]]:
    return [
        {"type": "url_citation", "url_citation": one} for one in response_fields.citations_of(request.memory, answer)
    ]


def _usage(answer: AnswerResult) -> dict[str, Any]:
    prompt = answer.known + answer.read
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer.tokens,
        "total_tokens": prompt + answer.tokens,
        "prompt_tokens_details": {"cached_tokens": answer.known},
    }
