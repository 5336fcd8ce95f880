"""A real model behind the service answers OpenAI's client, and programs that build on it, from what it read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from everlong import MemoryConfig
from everlong.data import shipped_books
from everlong.models import load
from everlong.serve.loaded_model import LoadedModel
from support.service import Running, running

pytestmark = pytest.mark.slow

FACT = "The pass key for the garden shed is 48213."
QUESTION = "What is the pass key for the garden shed?"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model, tokenizer = load("smollm2")
    # A small frame, so that a short text leaves it.
    config = MemoryConfig.fitting(1024)
    with running(tmp_path_factory.mktemp("memories"), loaded=LoadedModel("smollm2", model, tokenizer, config)) as there:
        client = openai.OpenAI(base_url=there.api, api_key="none", max_retries=0)
        client.post("/memories", body={"name": "notes"}, cast_to=object)
        book = shipped_books()[0].text
        text = f"{book[:2000]}\n\n{FACT}\n\n{book[2000:4000]}"
        body = {"source": "notes.txt", "text": text, "wait": True}
        done: Any = client.post("/memories/notes/sources", body=body, cast_to=object)
        assert done["status"] == "done", done
        yield there


def test_it_answers_from_what_it_read_over_a_whole_conversation(service: Running) -> None:
    client = openai.OpenAI(base_url=service.api, api_key="none", max_retries=0)
    turns: list[Any] = [{"role": "user", "content": QUESTION}]
    for turn in range(3):
        answer: Any = client.chat.completions.create(model="notes", messages=turns, max_tokens=24, temperature=0)
        assert "48213" in answer.choices[0].message.content, turn
        if turn == 0:
            assert FACT in answer.everlong["recall"][0]["text"]
            assert answer.everlong["confidence"] > 0.5
        turns += [{"role": "assistant", "content": answer.choices[0].message.content}]
        turns += [{"role": "user", "content": QUESTION}]
    assert answer.everlong["tokens_known"] > answer.everlong["tokens_read"]


def test_langchain_uses_it_as_it_is(service: Running) -> None:
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(
        base_url=service.api, api_key="none", model="notes", temperature=0, max_tokens=24, max_retries=0
    )
    assert "48213" in model.invoke(QUESTION).content
    streamed = "".join(chunk.content for chunk in model.stream([("system", "Be brief."), ("human", QUESTION)]))
    assert "48213" in streamed


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_agent_of_openai_uses_it_as_it_is(service: Running, api: str) -> None:
    agents = pytest.importorskip("agents")
    client = openai.AsyncOpenAI(base_url=service.api, api_key="none", max_retries=0)
    kinds = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}
    agents.set_tracing_disabled(True)
    settings = agents.ModelSettings(temperature=0, max_tokens=24)
    agent = agents.Agent(
        name="keeper",
        instructions="Answer from what you know.",
        model=kinds[api](model="notes", openai_client=client),
        model_settings=settings,
    )
    assert "48213" in str(agents.Runner.run_sync(agent, QUESTION).final_output)
