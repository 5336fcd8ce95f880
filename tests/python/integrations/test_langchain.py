"""LangChain over a memory: the suites of langchain-tests, and what they do not ask."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import everlong
from support.chatting import chat_memory

pytest.importorskip("langchain_tests", reason="the package langchain-tests is not installed")

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_tests.integration_tests import ChatModelIntegrationTests, RetrieversIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from everlong.integrations.langchain import ChatEverlong, EverlongChatMessageHistory, EverlongRetriever

GENERATION = {"max_new_tokens": 8, "min_new_tokens": 4, "suppress_tokens": [*range(32), *range(127, 257)]}  # letters
MEMORY: list[everlong.MemoryModel] = []


@pytest.fixture(scope="module", autouse=True)
def memory() -> Iterator[everlong.MemoryModel]:
    """One for all tests: none of them changes what it holds but those that make their own."""
    with chat_memory() as mm:
        MEMORY[:] = [mm]
        yield mm


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
class TestRetriever(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[EverlongRetriever]:
        return EverlongRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"memory": MEMORY[0]}

    @property
    def retriever_query_example(self) -> str:
        return "Where is the key of the garden shed?"


class _OfAChatModel:
    @property
    def chat_model_class(self) -> type[ChatEverlong]:
        return ChatEverlong

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"memory": MEMORY[0], "generation": GENERATION}

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False

    @property
    def supports_json_mode(self) -> bool:
        return False


class TestChatModelUnit(_OfAChatModel, ChatModelUnitTests):
    pass


@pytest.mark.anyio
class TestChatModel(_OfAChatModel, ChatModelIntegrationTests):
    pass


def test_documents_cite_and_filters_hold(memory: everlong.MemoryModel) -> None:
    retriever = EverlongRetriever(memory=memory, k=2)
    first = retriever.invoke("Does 48213 open the garden shed?")[0]
    (expected, _) = memory.find("Does 48213 open the garden shed?", k=2)
    assert "48213" in first.page_content
    told = first.metadata
    assert (told["source"], told["place"], told["score"], told["span"]) == (
        "garden",
        "",
        expected.score,
        list(expected.span),
    )
    assert {"confidence", "origin", "role", "found_by", "block_id", "told"} <= told.keys()
    kitchen = everlong.Where(source="kitchen")
    assert {one.metadata["source"] for one in retriever.invoke("garden", where=kitchen)} == {"kitchen"}
    narrow = EverlongRetriever(memory=memory, where=kitchen)
    assert {one.metadata["source"] for one in narrow.invoke("garden", k=9)} == {"kitchen"}


def test_an_answer_is_the_memorys_and_a_stream_says_the_same(memory: everlong.MemoryModel) -> None:
    chat = ChatEverlong(memory=memory, max_tokens=12, temperature=0)
    asked = [SystemMessage("Be short."), HumanMessage("Which key opens the garden shed?")]
    answer = chat.invoke(asked)
    expected = memory.generate(asked[1].content, 12, system="Be short.", remember=False, do_sample=False)
    assert answer.content == expected.text
    assert [one["span"] for one in answer.response_metadata["recalled"]] == [list(r.span) for r in expected.recalled]
    assert answer.usage_metadata["output_tokens"] == expected.tokens
    streamed = list(chat.stream(asked))
    assert "".join(chunk.content for chunk in streamed) == answer.content
    whole = streamed[0]
    for chunk in streamed[1:]:
        whole += chunk
    assert whole.usage_metadata == answer.usage_metadata
    assert whole.response_metadata["recalled"] == answer.response_metadata["recalled"]


def test_nothing_is_remembered_unless_that_is_wanted() -> None:
    with chat_memory() as mm:
        chat = ChatEverlong(memory=mm, max_tokens=4, generation=GENERATION)
        before = mm.stream_tokens
        first = chat.invoke("Who painted the lighthouse?")
        assert mm.stream_tokens == before
        chat = ChatEverlong(memory=mm, max_tokens=4, generation=GENERATION, remember=True)
        first = chat.invoke("Who painted the lighthouse?")
        once = mm.stream_tokens - before
        assert once > 0
        told = [HumanMessage("Who painted the lighthouse?"), first, HumanMessage("And when?")]
        chat.invoke(told)
        again = mm.stream_tokens - before - once
        assert 0 < again < once + 12  # the first question is not read again
        asked = "".join(mm.text(block.id) for block in mm.memory.blocks(where=everlong.Where(role="asked")))
        assert asked.count("lighthouse") == 1
        assert "And when?" in asked


@pytest.mark.parametrize(
    "messages",
    [
        [ToolMessage("4", tool_call_id="1")],
        [HumanMessage([{"type": "image_url", "image_url": "x"}])],
        [AIMessage("", tool_calls=[{"name": "add", "args": {}, "id": "1"}]), HumanMessage("go on")],
    ],
)
def test_what_is_no_text_is_refused(memory: everlong.MemoryModel, messages: list[Any]) -> None:
    with pytest.raises(ValueError, match="ChatEverlong takes text"):
        ChatEverlong(memory=memory).invoke(messages)


def test_tools_are_refused_clearly(memory: everlong.MemoryModel) -> None:
    chat = ChatEverlong(memory=memory)
    with pytest.raises(NotImplementedError, match="calls no tools"):
        chat.bind_tools([])
    with pytest.raises(NotImplementedError, match="calls no tools"):
        chat.invoke("add", tools=[{"name": "add"}])


def test_a_history_is_kept_with_its_memory_and_found_in_it(tmp_path: Any) -> None:
    with chat_memory(tmp_path / "m") as mm:
        history, other = EverlongChatMessageHistory(mm, "ann"), EverlongChatMessageHistory(mm, "ben")
        assert history.messages == []
        said = [HumanMessage("My boat is called Petrel."), AIMessage("A fine name.", id="a1")]
        history.add_messages(said)
        other.add_user_message("My dog is called Rex.")
        assert history.messages == said
        assert "Petrel" in mm.find("What is the boat called?", k=1)[0].text
        history.add_messages(said)  # the same words, said again
        assert history.messages == said * 2
    with chat_memory(tmp_path / "m") as mm:
        history = EverlongChatMessageHistory(mm, "ann")
        assert history.messages == said * 2
        history.clear()
        assert history.messages == []
        assert mm.memory.blocks("ann") == []
        assert len(EverlongChatMessageHistory(mm, "ben").messages) == 1
        assert len(mm.memory.blocks("ben")) == 1


def test_an_awaited_stream_is_whole_whatever_else_is_awaited() -> None:
    """Though asyncio has one thread: a call in the thread of an answer would end it."""
    with chat_memory() as mm:
        words = {"min_new_tokens": 24, "max_new_tokens": 24, "suppress_tokens": [*range(33, 64), *range(127, 257)]}
        chat, retriever = ChatEverlong(memory=mm, generation=words), EverlongRetriever(memory=mm, k=1)
        history = EverlongChatMessageHistory(mm, "ann")

        async def streamed(others: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> str:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
            text = ""
            tasks: list[asyncio.Task[Any]] = []
            async for chunk in chat.astream("pass key?"):
                tasks = tasks or [asyncio.create_task(other()) for other in others]
                text += str(chunk.content)
                for _ in range(5):  # nobody who waits has asyncio's thread, and the answer is not of it
                    with contextlib.suppress(everlong.MemoryBusyError):
                        await asyncio.to_thread(mm.find, "garden")
            await asyncio.gather(*tasks)
            return text

        calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: retriever.ainvoke("garden shed"),
            lambda: chat.ainvoke("garden shed?"),
            lambda: history.aadd_messages([HumanMessage("My dog is called Rex.")]),
            history.aclear,
        ]
        for call in calls:
            alone = asyncio.run(streamed(()))
            assert asyncio.run(streamed([call] * 2)) == alone
            assert len(alone) > 12


def test_a_chain_with_history_runs() -> None:
    with chat_memory() as mm:
        chat = ChatEverlong(memory=mm, max_tokens=4, generation=GENERATION)
        chain = RunnableWithMessageHistory(chat, lambda session_id: EverlongChatMessageHistory(mm, session_id))
        session = {"configurable": {"session_id": "ann"}}
        for question in ("Which key opens the shed?", "And the lighthouse?"):
            assert chain.invoke(question, config=session).content
        kept = EverlongChatMessageHistory(mm, "ann").messages
        assert [one.type for one in kept] == ["human", "ai", "human", "ai"]
