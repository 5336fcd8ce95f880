"""The Responses API and embeddings, by OpenAI's own client."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from support import random_text
from support.service import MODEL, Running, running

pytestmark = pytest.mark.slow


class Letters:
    """An encoder: how often each letter is in a text."""

    name = "letters"

    def encode(self, sentences: list[str]) -> Any:
        counts = [[sentence.lower().count(letter) + 0.5 for letter in "abcdefghijklmnop"] for sentence in sentences]
        return np.asarray(counts, dtype=np.float32)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("memories"), encoder=Letters()) as there:
        yield there


@pytest.fixture
def client(service: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=service.api, api_key="none", max_retries=0)


def respond(client: openai.OpenAI, asked: Any, **more: Any) -> Any:
    return client.responses.create(model=MODEL, input=asked, **{"max_output_tokens": 8, "temperature": 0, **more})


def test_a_response_goes_on_from_an_earlier_one_and_forks(client: openai.OpenAI) -> None:
    first = respond(client, "I am Ada. " + random_text(200))
    assert first.status == "incomplete"
    assert first.incomplete_details.reason == "max_output_tokens"
    assert len(first.output_text) > 0
    second = respond(client, "Who am I?", previous_response_id=first.id)
    third = respond(client, "And who are you?", previous_response_id=second.id)
    assert third.usage.input_tokens_details.cached_tokens > 200
    assert third.everlong["tokens_read"] < 100
    fork = respond(client, "And who was I?", previous_response_id=second.id)
    assert fork.usage.input_tokens_details.cached_tokens == third.usage.input_tokens_details.cached_tokens
    again = respond(client, "And who are you?", previous_response_id=second.id)
    assert again.output_text == third.output_text
    assert client.responses.retrieve(third.id).output_text == third.output_text


def test_it_says_what_chat_says(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}],
        max_tokens=8,
        temperature=0,
    )
    assert respond(client, "Who?", instructions="Be brief.").output_text == chat.choices[0].message.content
    listed = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Who?"}]},
    ]
    assert respond(client, listed).output_text == chat.choices[0].message.content


def test_its_events_come_in_order_and_add_up(client: openai.OpenAI) -> None:
    whole = respond(client, "Who are you?")
    with client.responses.stream(model=MODEL, input="Who are you?", max_output_tokens=8, temperature=0) as stream:
        events = list(stream)
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert [event.sequence_number for event in events] == sorted({event.sequence_number for event in events})
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == events[-1].response.output_text == whole.output_text


def test_what_is_not_kept_is_not_there_and_what_is_deleted_is_gone(client: openai.OpenAI) -> None:
    unkept, kept = respond(client, "Who?", store=False), respond(client, "Who?")
    client.responses.delete(kept.id)
    for id in (unkept.id, kept.id, "resp_none"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(id)
        with pytest.raises(openai.NotFoundError):
            respond(client, "And?", previous_response_id=id)


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "web_search"}]},
        {"background": True},
        {"include": ["file_search_call.results"]},
        {"text": {"format": {"type": "json_object"}}},
        {"max_output_tokens": 0},
        {"extra_body": {"conversation": "c"}},
    ],
)
def test_what_is_not_supported_is_refused(client: openai.OpenAI, more: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        respond(client, "Who?", **more)
    assert refused.value.param in more or refused.value.param == "conversation"


def test_embeddings_are_the_encoders(client: openai.OpenAI) -> None:
    texts = ["a banana", "a cabin"]
    for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        made = client.embeddings.create(model="letters", input=texts, **form)
        rows = [row.embedding for row in made.data]
        if isinstance(rows[0], str):
            rows = [np.frombuffer(base64.b64decode(row), np.float32) for row in rows]
        assert np.array_equal(np.asarray(rows, np.float32), Letters().encode(texts))
    assert client.embeddings.create(model="letters", input="a").usage.prompt_tokens == 1
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="a")
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model="letters", input=[[1, 2]])  # type: ignore[list-item]
