"""Haystack over a memory: pipelines that are written down and made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.chatting import FACTS, chat_tokenizer
from support.models import tiny_model

pytest.importorskip("haystack", reason="the package haystack-ai is not installed")

from haystack import Document, Pipeline
from haystack.dataclasses import ChatMessage

from everlong.integrations.haystack import (
    EverlongDocumentWriter,
    EverlongMemoryRetriever,
    EverlongMemoryStore,
    EverlongMemoryWriter,
    EverlongRetriever,
)


@pytest.fixture
def store(tmp_path: Path) -> EverlongMemoryStore:
    tiny_model().save_pretrained(tmp_path / "model")
    chat_tokenizer().save_pretrained(tmp_path / "model")
    return EverlongMemoryStore(
        memory=str(tmp_path / "m"), model=str(tmp_path / "model"), top_k=2, settings=["search.index=lexical"]
    )


def test_a_pipeline_is_written_down_and_made_again(store: EverlongMemoryStore) -> None:
    pipeline = Pipeline()
    pipeline.add_component("writer", EverlongDocumentWriter(store))
    pipeline.add_component("retriever", EverlongRetriever(store))
    written = [Document(content=text, meta={"source": source}) for source, text in FACTS.items()]
    done = pipeline.run({"writer": {"documents": written}, "retriever": {"query": "nothing yet"}})
    assert done["writer"] == {"documents_written": 3}
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["everlong.integrations.haystack"])
    assert again.to_dict() == pipeline.to_dict()
    found = again.run({"retriever": {"query": "the pass key of the garden shed"}, "writer": {"documents": written}})
    first = found["retriever"]["documents"][0]
    assert (first.content, first.meta["source"]) == (FACTS["garden"], "garden")
    assert len(found["retriever"]["documents"]) == 2
    assert again.get_component("retriever").memory_store.memory_model is store.memory_model
    only = again.run({"retriever": {"query": "shed", "sources": ["kitchen"], "top_k": 9}, "writer": {"documents": []}})
    assert {one.meta["source"] for one in only["retriever"]["documents"]} == {"kitchen"}
    assert store.memory_model.stream_tokens == sum(map(len, FACTS.values()))  # nothing was read twice
    store.close()
    assert again.run({"retriever": {"query": "48213"}, "writer": {"documents": []}})["retriever"]["documents"]
    again.get_component("retriever").memory_store.close()


def test_messages_are_remembered_for_their_users(store: EverlongMemoryStore) -> None:
    writer, retriever = EverlongMemoryWriter(store), EverlongMemoryRetriever(store)
    said = [ChatMessage.from_user("My boat is called Petrel."), ChatMessage.from_assistant("Noted.")]
    assert writer.run(messages=said, user_id="ann") == {"messages_written": 2}
    writer.run(messages=[ChatMessage.from_user("My dog is called Rex.")], user_id="ben")
    first = retriever.run(query="What is my boat called?", user_id="ann")["messages"][0]
    assert "Petrel" in first.text
    assert first.meta["source"] == "user ann"
    assert "Petrel" not in "".join(one.text for one in retriever.run(query="boat", user_id="ben")["messages"])
    assert retriever.run(query=" ") == {"messages": []}
    store.delete_all_memories(user_id="ann")
    assert retriever.run(query="boat Petrel", user_id="ann") == {"messages": []}
    assert retriever.run(query="Which dog?")["messages"][0].meta["source"] == "user ben"
    store.delete_all_memories()
    assert store.search_memories(query="dog") == []
    store.close()


def test_an_empty_list_finds_nothing(store: EverlongMemoryStore) -> None:
    EverlongDocumentWriter(store).run([Document(content=text, meta={"source": name}) for name, text in FACTS.items()])
    retriever = EverlongRetriever(store)
    assert retriever.run("the pass key", sources=[]) == {"documents": []}
    assert retriever.run("the pass key", tags=[]) == {"documents": []}
    assert retriever.run("the pass key", sources=["kitchen"], tags=[]) == {"documents": []}
    assert len(retriever.run("the pass key", top_k=9, sources=None)["documents"]) == len(FACTS)
    store.close()
