"""A conversation as messages, and what is checked before a chat template sees it."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

# As transformers' chat templates take them: `role` and `content`, both text. Other keys are for the template.
Message = Mapping[str, Any]


def question_of(question: str | None, messages: Sequence[Message] | None, system: str | None) -> str | list[Message]:
    """Return what is asked: a question as it is, or messages, a system message first. The last one is a user's.

    TypeError for neither or both of question and messages, and for what is no text. ValueError for messages that end
    otherwise, or have a system message beside `system`.
    """
    if (question is None) == (messages is None):
        raise TypeError("expected a question, or messages=[{'role': 'user', 'content': ...}], and not both")
    if messages is None:
        if not isinstance(question, str):
            named = f"{reprlib.repr(question)} ({type(question).__name__})"
            raise TypeError(f"the question is {named}, expected one str{_hint(question)}")
        return question if system is None else [_system(system), {"role": "user", "content": question}]
    if isinstance(messages, str | Mapping):
        raise TypeError(f"messages is a {type(messages).__name__}: expected a list of them")
    found = list(messages)
    for message in found:
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise TypeError(f"the message {message!r} is no {{'role': str, 'content': str}}")
    if not found or found[-1]["role"] != "user":
        last = f"{found[-1]['role']}'s" if found else "missing"
        raise ValueError(f"the last message is {last}: expected a user's, which is answered")
    if system is None:
        return found
    if found[0]["role"] == "system":
        raise ValueError("there is a system message among messages: system= would be a second one")
    return [_system(system), *found]


def _hint(question: object) -> str:
    """Return what to do with what was given as a question, where that is plain."""
    if isinstance(question, bytes | bytearray):
        return ", decoded"
    if isinstance(question, Mapping):
        return ', or messages=[{"role": "user", "content": ...}]'
    if isinstance(question, Sequence):
        return "; messages= takes several turns, answer_many several questions"
    return ""


def with_system_in_turn(messages: Sequence[Message]) -> list[Message]:
    """Return messages without a system message, for templates that take none: the first user turn has its text."""
    system, *rest = messages
    first = next(index for index, message in enumerate(rest) if message["role"] == "user")
    content = f"{system['content'].strip()}\n\n{rest[first]['content']}"
    return [*rest[:first], {**rest[first], "content": content}, *rest[first + 1 :]]


def _system(text: str) -> Message:
    if not isinstance(text, str):
        raise TypeError(f"system is a {type(text).__name__}, expected str")
    return {"role": "system", "content": text}
