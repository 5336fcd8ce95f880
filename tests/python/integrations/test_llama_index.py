"""LlamaIndex over a memory: a retriever in a query engine, and a block of an agent's memory."""

from __future__ import annotations

import asyncio

import pytest

import everlong
from support.chatting import chat_memory

pytest.importorskip("llama_index.core", reason="the package llama-index-core is not installed")

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms import MockLLM
from llama_index.core.memory import Memory
from llama_index.core.query_engine import RetrieverQueryEngine

from everlong.integrations.llama_index import EverlongMemoryBlock, EverlongRetriever


def test_a_query_engine_answers_from_cited_nodes() -> None:
    with chat_memory() as mm:
        retriever = EverlongRetriever(mm, k=2)
        engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
        answer = engine.query("Does 48213 open the garden shed?")
        (best, second) = answer.source_nodes
        assert "48213" in best.node.get_content()
        assert (best.node.metadata["source"], best.score >= second.score) == ("garden", True)
        assert best.score == mm.find("Does 48213 open the garden shed?", k=2)[0].score
        assert "48213" in str(answer)  # the mock repeats its prompt
        assert "found_by" not in str(answer)
        only = EverlongRetriever(mm, where=everlong.Where(source="kitchen"))
        assert {one.node.metadata["source"] for one in only.retrieve("garden")} == {"kitchen"}
        assert [one.score for one in asyncio.run(retriever.aretrieve("plum cake"))] == [
            one.score for one in retriever.retrieve("plum cake")
        ]


def test_a_memory_block_keeps_what_leaves_and_brings_it_back() -> None:
    with chat_memory() as mm:
        block = EverlongMemoryBlock(memory=mm, source="ann", where=everlong.Where(source="ann"), k=1)
        memory = Memory.from_defaults(
            session_id="s",
            token_limit=80,
            token_flush_size=30,
            chat_history_token_ratio=0.5,
            memory_blocks=[block],
            tokenizer_fn=str.split,
        )
        memory.put(ChatMessage(role="user", content="My boat is called Petrel and lies in the old harbour."))
        for number in range(12):
            memory.put(ChatMessage(role="user", content=f"Other words number {number} about the weather of today."))
        memory.put(ChatMessage(role="user", content="What is my boat called?"))
        shown = "\n".join(str(message.content) for message in memory.get())
        assert "Petrel" in shown
        assert mm.memory.blocks("ann")
        assert asyncio.run(block.aget([])) == ""
