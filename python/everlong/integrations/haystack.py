"""Haystack: a memory store, and components that retrieve from it and write into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everlong.generation.memory_model import MemoryModel
from everlong.integrations.citations import citation, words_of
from everlong.integrations.exclusive import exclusive, exclusive_calls
from everlong.integrations.extras import missing
from everlong.integrations.memory_pool import open_shared
from everlong.memory.where import Where
from everlong.retrieval.recall import Recall

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.dataclasses import ChatMessage
except ImportError as error:
    raise missing(error, "haystack") from error


class EverlongMemoryStore:
    """A memory by the names of its model and its folder, so that a pipeline with it can be written down.

    It is opened when it is first needed. Stores of one process that name the same share it.
    """

    def __init__(self, *, memory: str, model: str = "smollm2", top_k: int = 4, settings: Sequence[str] = ()) -> None:
        """`settings` are as `--set` takes them: ["search.groups=8"]."""
        self.memory, self.model, self.top_k, self.settings = memory, model, top_k, list(settings)
        self._opened: MemoryModel | None = None

    @property
    def memory_model(self) -> MemoryModel:
        """The MemoryModel, opened by now; anew where a store that shared it closed it."""
        self._opened = open_shared(self.model, self.memory, self.settings)
        return self._opened

    def close(self) -> None:
        """Close the memory, for all that share it."""
        if self._opened is not None:
            exclusive(self._opened.close)
            self._opened = None

    def add_memories(self, *, messages: list[ChatMessage], user_id: str | None = None, **args: Any) -> None:
        """Read messages into the memory, for a user's name where there is one."""
        turns = words_of([(message.role.value, message.text or "") for message in messages])
        if turns:
            exclusive(lambda: self.memory_model.read(turns, source=_source(user_id), again=True))

    def search_memories(
        self, *, query: str | None = None, top_k: int | None = None, user_id: str | None = None, **args: Any
    ) -> list[ChatMessage]:
        """Return what a question finds, best first, as messages of the system; of a user's alone where one is named."""
        return [
            ChatMessage.from_system(one.text, meta=citation(one))
            for one in self.found(query or "", top_k, None if user_id is None else [_source(user_id)])
        ]

    def delete_all_memories(self, *, user_id: str | None = None, **args: Any) -> None:
        """Forget what was read for a user; without one everything."""
        with exclusive_calls(self.memory_model):
            kept = self.memory_model.memory
            kept.forget([block.id for block in kept.blocks(None if user_id is None else _source(user_id))])

    def found(
        self,
        query: str,
        top_k: int | None = None,
        sources: Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
    ) -> tuple[Recall, ...]:
        """Return passages, best first, of any of the sources and with all of the tags.

        None does not choose. An empty list chooses nothing, and so nothing is found.
        """
        args = (("source", sources), ("tags", tags))
        chosen: dict[str, Any] = {name: names for name, names in args if names is not None}
        if not query.strip() or not all(chosen.values()):
            return ()
        where, count = Where(**chosen), self.top_k if top_k is None else top_k
        return exclusive(lambda: self.memory_model.find(query, k=count, where=where))

    def to_dict(self) -> dict[str, Any]:
        """Return the names that it is made of."""
        named: dict[str, Any] = default_to_dict(
            self, memory=self.memory, model=self.model, top_k=self.top_k, settings=self.settings
        )
        return named

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> EverlongMemoryStore:
        """Make it of what `to_dict` returned."""
        made: EverlongMemoryStore = default_from_dict(cls, data)
        return made


def _source(user_id: str | None) -> str:
    return "conversation" if user_id is None else f"user {user_id}"


class _OverAStore:
    """What the components have in common."""

    def __init__(self, memory_store: EverlongMemoryStore) -> None:
        self.memory_store = memory_store

    def warm_up(self) -> None:
        """Open the memory."""
        _ = self.memory_store.memory_model

    def to_dict(self) -> dict[str, Any]:
        """Return the component as a pipeline writes it down."""
        named: dict[str, Any] = default_to_dict(self, memory_store=self.memory_store.to_dict())
        return named

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Make the component of what `to_dict` returned."""
        args = data["init_parameters"]
        store = EverlongMemoryStore.from_dict(args["memory_store"])
        return default_from_dict(cls, {**data, "init_parameters": {**args, "memory_store": store}})


@component
class EverlongRetriever(_OverAStore):
    """Retrieves passages of a memory as documents. Their meta cite: source, place, origin, confidence."""

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, top_k: int | None = None, sources: list[str] | None = None, tags: list[str] | None = None
    ) -> dict[str, list[Document]]:
        """Return documents, best first, of any of the sources and with all of the tags; none for an empty list."""
        found = self.memory_store.found(query, top_k, sources, tags)
        return {"documents": [Document(content=one.text, meta=citation(one), score=one.score) for one in found]}


@component
class EverlongMemoryRetriever(_OverAStore):
    """Retrieves what earlier messages said, as messages of the system."""

    @component.output_types(messages=list[ChatMessage])
    def run(self, query: str, top_k: int | None = None, user_id: str | None = None) -> dict[str, list[ChatMessage]]:
        """Return messages, best first."""
        return {"messages": self.memory_store.search_memories(query=query, top_k=top_k, user_id=user_id)}


@component
class EverlongMemoryWriter(_OverAStore):
    """Reads messages into a memory."""

    @component.output_types(messages_written=int)
    def run(self, messages: list[ChatMessage], user_id: str | None = None) -> dict[str, int]:
        """Return how many there were."""
        self.memory_store.add_memories(messages=messages, user_id=user_id)
        return {"messages_written": len(messages)}


@component
class EverlongDocumentWriter(_OverAStore):
    """Reads documents into a memory, each under the `source` of its meta, or its id. What was read before stays."""

    @component.output_types(documents_written=int)
    def run(self, documents: list[Document]) -> dict[str, int]:
        """Return how many had text."""
        texts = [(one.content, str(one.meta.get("source") or one.id)) for one in documents if one.content]
        for text, source in texts:
            self._read(text, source)
        return {"documents_written": len(texts)}

    def _read(self, text: str, source: str) -> None:
        exclusive(lambda: self.memory_store.memory_model.read(text, source=source))
