"""OpenAI's own client talks with a running service: models, chat, streams, conversations that are sent again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from support import random_text, tiny_model
from support.service import MODEL, Running, chat_tokenizer, running

pytestmark = pytest.mark.slow

FACTS = {"garden": "The key of the shed hangs behind the clock.", "harbour": "The ferry of Maren leaves at dawn."}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("memories")) as there:
        client = openai.OpenAI(base_url=there.api, api_key="none", max_retries=0)
        for number, (name, fact) in enumerate(FACTS.items()):
            text = f"{random_text(1500, seed=number)} {fact} {random_text(1500, seed=10 + number)}"
            client.post("/memories", body={"name": name}, cast_to=object)
            body = {"source": f"{name}.txt", "text": text, "wait": True}
            done: Any = client.post(f"/memories/{name}/sources", body=body, cast_to=object)
            assert done["status"] == "done", done
        yield there


@pytest.fixture
def client(service: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=service.api, api_key="none", max_retries=0)


def ask(client: openai.OpenAI, messages: list[dict[str, str]] | str, model: str = "garden", **more: Any) -> Any:
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    how = {"max_tokens": 12, "temperature": 0, **more}
    return client.chat.completions.create(model=model, messages=turns, **how)


def said(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def test_models_are_the_one_alone_and_one_for_each_memory(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL, "garden", "harbour"]
    assert client.models.retrieve("harbour").id == "harbour"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nowhere")


@pytest.mark.parametrize("name", FACTS)
def test_an_answer_cites_its_own_memory(client: openai.OpenAI, name: str) -> None:
    answer = ask(client, FACTS[name].replace("The", "Say where the"), model=name)
    recalled = answer.everlong["recall"]
    assert any(FACTS[name] in one["text"] for one in recalled)
    assert {one["source"] for one in recalled} == {f"{name}.txt"}
    cited = answer.choices[0].message.annotations
    assert [one.url_citation.title for one in cited] == [one["source"] for one in recalled]
    block = client.get(cited[0].url_citation.url.removeprefix("/v1"), cast_to=object)
    assert any(one["passage"].strip() in block["before"] + block["text"] + block["behind"] for one in recalled)
    assert answer.usage.completion_tokens == 12
    assert answer.choices[0].finish_reason == "length"


def test_a_stream_says_what_a_whole_answer_says(client: openai.OpenAI) -> None:
    whole = ask(client, "Where is the key?")
    chunks = list(ask(client, "Where is the key?", stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == said(whole)
    assert chunks[-1].usage == whole.usage
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-2].everlong["recall"] == whole.everlong["recall"]


def test_an_answer_ends_before_a_stop_string(client: openai.OpenAI) -> None:
    whole = said(ask(client, "Where is the key?", max_tokens=40))
    stop = whole[10:13]
    stopped = ask(client, "Where is the key?", max_tokens=40, stop=[stop, "no such text"])
    assert said(stopped) == whole[: whole.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    streamed = ask(client, "Where is the key?", max_tokens=40, stop=stop, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == said(stopped)


def test_a_seed_draws_the_same_again_and_another_draws_otherwise(client: openai.OpenAI) -> None:
    def drawn(seed: int) -> str:
        return said(ask(client, "Where?", temperature=1.5, top_p=0.95, seed=seed, max_tokens=20))

    assert drawn(1) == drawn(1)
    assert len({drawn(seed) for seed in range(4)}) > 1


def test_scores_are_the_models_own(client: openai.OpenAI) -> None:
    answer = ask(client, "Where?", model=MODEL, logprobs=True, top_logprobs=5, max_tokens=6)
    scored = answer.choices[0].logprobs.content
    model, tokenizer = tiny_model(), chat_tokenizer()
    turns = [{"role": "user", "content": "Where?"}]
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    for one in scored:
        with torch.no_grad():
            row = torch.log_softmax(model(ids).logits[0, -1].float(), dim=-1)
        best = row.topk(5)
        assert one.logprob == pytest.approx(float(best.values[0]), abs=1e-4)
        assert [other.logprob for other in one.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert one.top_logprobs[0].token == one.token
        ids = torch.cat([ids, best.indices[:1][None]], dim=1)
    assert len(scored) == 6
    text = said(answer)
    stopped = ask(client, "Where?", model=MODEL, logprobs=True, max_tokens=6, stop=text[3:])
    assert len(stopped.choices[0].logprobs.content) <= 6
    assert said(stopped) == text[:3]
    drawn = ask(client, "Where?", model=MODEL, logprobs=True, max_tokens=6, temperature=2, seed=3)
    assert drawn.choices[0].logprobs.content[0].logprob <= scored[0].logprob


def test_a_system_message_is_read(client: openai.OpenAI) -> None:
    plain = ask(client, "Where?")
    told = ask(client, [{"role": "system", "content": "Answer in rhyme."}, {"role": "user", "content": "Where?"}])
    assert told.usage.prompt_tokens > plain.usage.prompt_tokens


def test_a_conversation_that_is_sent_again_is_not_read_again(client: openai.OpenAI) -> None:
    turns = [{"role": "user", "content": "I am Ada, and my number is 4711. " + random_text(300, seed=5)}]
    for turn in range(5):
        answer = ask(client, turns, model=MODEL)
        if turn > 1:  # the first turn is answered without a trace, so the second one reads it with its own
            assert answer.everlong["tokens_read"] < 200, turn
            assert answer.usage.prompt_tokens_details.cached_tokens > 300
        turns += [{"role": "assistant", "content": said(answer)}, {"role": "user", "content": f"And then, {turn}?"}]
    assert answer.usage.prompt_tokens == answer.everlong["tokens_read"] + answer.everlong["tokens_known"]


def test_regenerated_and_edited_turns_branch(client: openai.OpenAI) -> None:
    turns = [{"role": "user", "content": "My number is 4711."}]
    for question in ("Say it.", "Say it again."):
        turns += [{"role": "assistant", "content": said(ask(client, turns))}, {"role": "user", "content": question}]
    first = ask(client, turns)
    goes_on = [*turns, {"role": "assistant", "content": said(first)}, {"role": "user", "content": "Once more."}]
    after = ask(client, goes_on)
    again = ask(client, turns)
    assert said(again) == said(first)
    assert again.everlong["tokens_known"] == first.everlong["tokens_known"] > 0
    edited = ask(client, [*turns[:-1], {"role": "user", "content": "Say it backwards."}])
    assert edited.everlong["tokens_known"] == first.everlong["tokens_known"]
    assert said(ask(client, goes_on)) == said(after)


def test_the_tenth_turn_of_a_long_chat_reads_its_own_turn_and_finds_the_first(client: openai.OpenAI) -> None:
    """20,000 tokens, of which the frame holds some 400."""
    turns = [{"role": "user", "content": "The word of the lighthouse is amaranth. " + random_text(2000, seed=20)}]
    for number in range(1, 10):
        answer = said(ask(client, turns, model=MODEL, max_tokens=4))
        more = random_text(2000, seed=20 + number) if number < 9 else "What is the word of the lighthouse?"
        turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": more}]
    answer = ask(client, turns, model=MODEL, max_tokens=4)
    assert answer.usage.prompt_tokens > 18_000
    assert answer.everlong["tokens_read"] < 100
    assert any("amaranth" in one["text"] for one in answer.everlong["recall"])


def test_nothing_of_a_question_stays_in_the_memory(service: Running, client: openai.OpenAI) -> None:
    with service.service.registry.open_read_only("garden") as memory:
        before = memory.blocks()
    ask(client, "Where is the key?")
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    ask(client, turns)
    with service.service.registry.open_read_only("garden") as memory:
        assert memory.blocks() == before


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True, "stream": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 1 << 63}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, "tools"),
        ({"extra_body": {"top_k": 3}}, "top_k"),
        ({"extra_body": {"everlong": {"remember": True}}}, "everlong.remember"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(client: openai.OpenAI, more: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, "Where?", **more)
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "assistant", "content": "a"}],
        [{"role": "user", "content": "  "}],
        [{"role": "tool", "content": "a", "tool_call_id": "1"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}],
        [{"role": "user", "content": 3}],
    ],
)
def test_messages_that_are_none_are_refused(client: openai.OpenAI, messages: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        ask(client, messages)


def test_a_caller_who_goes_ends_the_answer(service: Running, client: openai.OpenAI) -> None:
    generated = service.service.metrics.generated._value
    before = generated.get()
    stream = ask(client, "Where?", max_tokens=4000, stream=True)
    next(iter(stream))
    stream.close()
    assert said(ask(client, "Where is the key?", max_tokens=3)) is not None
    with contextlib.suppress(openai.APITimeoutError):
        ask(client, "Where?", max_tokens=4000, timeout=0.2)
    assert said(ask(client, "Where is the key?", max_tokens=3)) is not None
    assert generated.get() - before == 6  # nobody's answer of 4,000 tokens was made


def test_an_answer_may_be_narrowed_and_go_without_the_memory(client: openai.OpenAI) -> None:
    bare = ask(client, "Where is the key?", extra_body={"everlong": {"recall": False}})
    assert bare.everlong["recall"] == []
    none = ask(client, "Where is the key?", extra_body={"everlong": {"source": ["nobody.txt"]}})
    assert none.everlong["recall"] == []
    one = ask(client, "Where is the key?", extra_body={"everlong": {"source": "garden.txt"}})
    assert one.everlong["recall"]


def test_unknown_memories_and_paths_are_refused(client: openai.OpenAI, tmp_path: Path) -> None:
    for name in ("nowhere", "../garden", "garden/../harbour", str(tmp_path), ".service", "a" * 65, "\u0430"):
        with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
            ask(client, "Where?", model=name)
