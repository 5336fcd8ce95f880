"""Questions as OpenAI's clients send them: messages, and how they are to be answered."""

from __future__ import annotations

from typing import Any

from everlong.memory.where import Where
from everlong.serve.answering import AnswerRequest
from everlong.serve.bodies import Fields
from everlong.service_data.errors import ApiError
from everlong.service_data.limits import Limits

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}  # and what has it
_SEEDS = 1 << 63
_ANY_SEED = -1  # of llama.cpp and its kin: draw one
_GREEDY = 1e-4  # below this temperature numbers of 32 bits overflow, and the likeliest token is taken anyway


def message_of(value: Any, field: str) -> dict[str, str]:
    """Return a message as role and text. ApiError for what is no text, and for other roles."""
    if not isinstance(value, dict):
        raise ApiError(400, f"{field}: expected an object with role and content", "invalid_value", param=field)
    role = _ROLES.get(str(value.get("role")))
    if role is None:
        raise ApiError(
            400, f"{field}.role is not supported: expected {', '.join(_ROLES)}", "unsupported_value", param=field
        )
    if value.get("tool_calls") or value.get("function_call"):
        raise ApiError(400, f"{field}: calls of tools are not supported", "unsupported_parameter", param=field)
    text = _text_of(value.get("content"), f"{field}.content")
    if role == "assistant" and not text:  # an answer that refuses says so beside its content
        text = _text_of(value.get("refusal"), f"{field}.refusal")
    return {"role": role, "content": text}


def messages_of(value: Any, field: str) -> list[dict[str, str]]:
    """Return messages, system messages as one at the front. ApiError where the last one is no user's."""
    if not isinstance(value, list) or not value:
        raise ApiError(400, f"{field}: expected a list of messages", "missing_required_parameter", param=field)
    found = [message_of(one, f"{field}[{number}]") for number, one in enumerate(value)]
    system = [one["content"] for one in found if one["role"] == "system"]
    turns = [one for one in found if one["role"] != "system"]
    if not turns or turns[-1]["role"] != "user" or not turns[-1]["content"].strip():
        raise ApiError(400, f"{field}: the last message is to be a user's, with text", "invalid_value", param=field)
    return [{"role": "system", "content": "\n\n".join(system)}, *turns] if system else turns


def memory_of(model: str, name: str) -> str:
    """Return the memory that a model's name means: "" for the model alone."""
    return "" if model == name else model


def answer_request_of(
    fields: Fields, memory: str, messages: list[dict[str, str]], tokens: int | None, limits: Limits
) -> AnswerRequest:
    """Take how to answer out of a body's fields."""
    extension = fields.inner("everlong")
    sources, tags = extension.texts("source", 64), extension.texts("tags", 64)
    recall = extension.flag("recall", True)
    extension.end()
    temperature, top_p = fields.number("temperature", 0, 2), fields.number("top_p", 0, 1)
    if top_p == 0 or (temperature is not None and temperature < _GREEDY):
        temperature, top_p = 0.0, None
    return AnswerRequest(
        memory,
        tuple(messages),
        limits.default_tokens if tokens is None else tokens,
        temperature,
        top_p,
        _seed(fields.whole("seed", -_SEEDS, _SEEDS - 1)),
        fields.texts("stop", 4, empty=True),
        recall,
        Where(source=sources, tags=tags),
        fields.text("user"),
    )


def _seed(seed: int | None) -> int | None:
    """Return a seed as a generator of random numbers takes it; None where one is to be drawn."""
    return None if seed is None or seed == _ANY_SEED else seed % _SEEDS


def _text_of(content: Any, field: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        text = content
    elif isinstance(content, list) and all(isinstance(part, dict) for part in content):
        text = "".join(_part_text(part, field) for part in content)
    else:
        raise ApiError(400, f"{field}: expected text, or a list of parts", "invalid_value", param=field)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ApiError(400, f"{field} has half a surrogate pair", "invalid_value", param=field) from None
    return text


def _part_text(part: dict[str, Any], field: str) -> str:
    kind = str(part.get("type"))[:40]
    text = part.get(_TEXT_PARTS.get(kind, ""))
    if not isinstance(text, str):
        raise ApiError(400, f"{field}: {kind!r} is not supported, only text", "unsupported_value", param=field)
    return text
