"""`/v1/responses`: answers that are kept, so that the next question goes on with one by its id."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from everlong.serve import response_fields
from everlong.serve.answering import AnswerRequest, AnswerResult
from everlong.serve.bodies import Fields, json_body
from everlong.serve.engine import Job, JobEnd
from everlong.serve.events import Events, event, first_event, pieces, whole
from everlong.serve.request_parsing import answer_request_of, memory_of, messages_of
from everlong.serve.service import Service
from everlong.service_data.errors import ApiError, refusal_of
from everlong.service_data.keys import Key
from everlong.service_data.memory_registry import NO_MEMORY_STATE, MemoryState
from everlong.service_data.stored_responses import StoredResponse

_BYTES_EACH = 16  # of a token of an answer that is kept, in its messages and its body


async def create_response(request: Request) -> Response:
    """Answer, and keep the answer unless `store` is false."""
    service: Service = request.app.state.service
    key: Key = request.state.key
    fields = Fields(await json_body(request, service.limits.json_depth))
    model, stream = fields.needed("model"), fields.flag("stream", False)
    store, previous = fields.flag("store", True), fields.text("previous_response_id")
    memory = memory_of(model, service.loaded.name)
    messages, state = await run_in_threadpool(_messages, service, fields, key, memory, previous)
    tokens = fields.tokens("max_output_tokens", service.limits.answer_tokens)
    answer_request = dataclasses.replace(
        answer_request_of(fields, memory, messages, tokens, service.limits), state=state
    )
    metadata = _metadata(fields)
    _refuse_others(fields)
    made = _ResponseBuilder(service, key, answer_request, model, previous, store=store, metadata=metadata)
    if store:  # what is kept has at most so many bytes, about
        size = 2 * sum(len(one["content"]) for one in messages) + _BYTES_EACH * answer_request.tokens
        await run_in_threadpool(service.quotas.require_bytes, key, size)
    job = service.ask(key, answer_request)
    if stream:
        return Events(_events(made, await first_event(request, job), job), job.cancel)
    answer = await whole(request, job)
    return JSONResponse(await run_in_threadpool(made.store, answer))


async def response(request: Request) -> Response:
    """Return, or delete, a response that was kept."""
    service: Service = request.app.state.service
    id, key = request.path_params["id"], request.state.key.name
    if request.method == "DELETE":
        if not await run_in_threadpool(service.kept.delete, id, key):
            raise _unknown(id)
        return JSONResponse({"id": id, "object": "response", "deleted": True})
    return JSONResponse((await run_in_threadpool(_stored, service, request.state.key, id, "id")).body)


class _ResponseBuilder:
    """A response that is being made."""

    def __init__(
        self,
        service: Service,
        key: Key,
        request: AnswerRequest,
        model: str,
        previous: str | None,
        *,
        store: bool,
        metadata: dict[str, Any],
    ) -> None:
        self._service, self._key, self.request, self._store = service, key, request, store
        self.id, self.item = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self._head = {
            "id": self.id,
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "previous_response_id": previous,
            "max_output_tokens": request.tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "store": store,
            "metadata": metadata,
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
            "error": None,
            "instructions": None,
            "text": {"format": {"type": "text"}},
        }

    def body(self, answer: AnswerResult | None = None, error: ApiError | None = None) -> dict[str, Any]:
        """Return it as it is now."""
        if error is not None:
            error_fields = {"code": error.code or "server_error", "message": error.message}
            return {**self._head, "status": "failed", "error": error_fields, "output": [], "usage": None}
        if answer is None:
            return {**self._head, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        whole = answer.finish == "stop"
        return {
            **self._head,
            "status": "completed" if whole else "incomplete",
            "incomplete_details": None if whole else {"reason": "max_output_tokens"},
            "output": [self.message(answer)],
            "usage": {
                "input_tokens": answer.known + answer.read,
                "input_tokens_details": {"cached_tokens": answer.known, "cache_write_tokens": answer.read},
                "output_tokens": answer.tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": answer.known + answer.read + answer.tokens,
            },
            "everlong": response_fields.everlong_field(self.request.memory, answer),
        }

    def part(self, answer: AnswerResult | None = None) -> dict[str, Any]:
        """Return the text of its message, with citations."""
        cited = [] if answer is None else response_fields.citations_of(self.request.memory, answer)
        annotations = [{"type": "url_citation", **one} for one in cited]
        return {
            "type": "output_text",
            "text": "" if answer is None else answer.text,
            "annotations": annotations,
            "logprobs": [],
        }

    def message(self, answer: AnswerResult | None = None) -> dict[str, Any]:
        status = "in_progress" if answer is None else "completed" if answer.finish == "stop" else "incomplete"
        content = [] if answer is None else [self.part(answer)]
        return {"type": "message", "id": self.item, "role": "assistant", "status": status, "content": content}

    def store(self, answer: AnswerResult) -> dict[str, Any]:
        """Return the whole response, once it is kept on disk."""
        body = self.body(answer)
        if self._store:
            turns = [*map(dict, self.request.messages), {"role": "assistant", "content": answer.text}]
            memory, state = self.request.memory, answer.state or NO_MEMORY_STATE
            left = self._service.quotas.bytes_left(self._key.name)
            body["store"] = self._service.kept.keep(self.id, self._key.name, memory, state, body, turns, left)
        return body


async def _events(made: _ResponseBuilder, first: Any, job: Job) -> AsyncIterator[str]:
    number = 0

    def numbered(kind: str, **fields: Any) -> str:
        nonlocal number
        number += 1
        return event({"type": f"response.{kind}", "sequence_number": number - 1, **fields}, f"response.{kind}")

    place = {"item_id": made.item, "output_index": 0, "content_index": 0}
    yield numbered("created", response=made.body())
    yield numbered("in_progress", response=made.body())
    yield numbered("output_item.added", output_index=0, item=made.message())
    yield numbered("content_part.added", **place, part=made.part())
    try:
        async for piece in pieces(first, job):
            if not isinstance(piece, JobEnd):
                yield numbered("output_text.delta", **place, delta=piece, logprobs=[])
                continue
            answer: AnswerResult = piece.value
            body = await run_in_threadpool(made.store, answer)
            yield numbered("output_text.done", **place, text=answer.text, logprobs=[])
            yield numbered("content_part.done", **place, part=made.part(answer))
            yield numbered("output_item.done", output_index=0, item=made.message(answer))
            yield numbered("completed" if answer.finish == "stop" else "incomplete", response=body)
    except Exception as error:
        yield numbered("failed", response=made.body(error=refusal_of(error)))


def _messages(
    service: Service, fields: Fields, key: Key, memory: str, previous: str | None
) -> tuple[list[dict[str, str]], MemoryState | None]:
    """Return all messages, of the earlier response and what is new, and the state of the memory that the first tell."""
    given = fields.take("input")
    new: Any = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if isinstance(new, list):
        new = [_without_type(one) for one in new]
    earlier: list[dict[str, str]] = []
    state: MemoryState | None = None
    if previous is not None:
        found = _stored(service, key, previous, "previous_response_id")
        state = found.state
        if found.memory != memory:
            raise ApiError(
                400,
                f"the response {previous} is of {found.memory or service.loaded.name!r}: expected that as the model",
                "invalid_value",
                param="model",
            )
        earlier = found.messages
    instructions = fields.text("instructions")
    if instructions is not None:  # in place of those of the earlier response
        earlier = [{"role": "system", "content": instructions}, *(one for one in earlier if one["role"] != "system")]
    return messages_of([*earlier, *new] if isinstance(new, list) and new else new, "input"), state


def _without_type(one: Any) -> Any:
    """Return an item of an input as a message. ApiError for an item that is none."""
    if isinstance(one, dict) and one.get("type", "message") != "message":
        kind = str(one["type"])[:40]
        raise ApiError(400, f"input: {kind!r} is not supported, only messages", "unsupported_value", param="input")
    return one


def _metadata(fields: Fields) -> dict[str, Any]:
    """Return what the caller notes with a response: a few texts by name, as OpenAI takes them."""
    given = fields.inner("metadata").left()
    if len(given) > 16 or not all(isinstance(value, str) and len(value) <= 512 for value in given.values()):
        raise fields.wrong("metadata", "at most 16 texts by name, each of at most 512 characters")
    if any(len(name) > 64 for name in given):
        raise fields.wrong("metadata", "names of at most 64 characters")
    return given


def _refuse_others(fields: Fields) -> None:
    fields.only("tools", ([],), "a memory calls no tools")
    fields.only("tool_choice", ("none", "auto"), "a memory calls no tools")
    fields.only("parallel_tool_calls", (True, False), "a memory calls no tools")
    fields.only("text", ({}, {"format": {"type": "text"}}), "an answer is text")
    fields.only("include", ([],), "all there is, is told")
    fields.only("background", (False,), "ask with stream")
    fields.only("truncation", ("disabled", "auto"), "what does not fit stays in the memory")
    fields.only("reasoning", ({},), "answers have no reasoning of their own")
    fields.only("top_logprobs", (0,), "ask the library for scores")
    fields.only("service_tier", ("auto", "default"), "there is one tier")
    for hint in ("prompt_cache_key", "safety_identifier"):
        fields.text(hint)
    fields.end()


def _stored(service: Service, key: Key, id: str, param: str) -> StoredResponse:
    """Return a response of a key. ApiError where it has none of that id, or may not see its memory any more."""
    found = service.kept.one(id, key.name)
    if found is None or (found.memory and not key.may_see(found.memory)):
        raise _unknown(id, param)
    return found


def _unknown(id: str, param: str = "id") -> ApiError:
    return ApiError(404, f"there is no response {id[:80]!r}", "response_not_found", param=param)
