"""LlamaIndex: a retriever and a memory block over a memory."""

from __future__ import annotations

from typing import Any

from everlong.generation.memory_model import MemoryModel
from everlong.integrations.citations import citation, cited, words_of
from everlong.integrations.exclusive import exclusive
from everlong.integrations.extras import missing
from everlong.integrations.threads import in_thread
from everlong.memory.where import EVERYWHERE, Where
from everlong.retrieval.recall import Recall

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.memory import BaseMemoryBlock
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from pydantic import Field, InstanceOf
except ImportError as error:
    raise missing(error, "llama_index") from error


class EverlongRetriever(BaseRetriever):
    """Passages of a memory as nodes with scores, best first. Their metadata cite: source, place, origin, confidence."""

    def __init__(self, memory: MemoryModel, k: int = 4, where: Where = EVERYWHERE, **args: Any) -> None:
        """`k` passages of what passes `where`. Other arguments are those of LlamaIndex's BaseRetriever."""
        self._memory, self._k, self._where = memory, k, where
        super().__init__(**args)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = exclusive(lambda: self._memory.find(query_bundle.query_str, k=self._k, where=self._where))
        return list(map(_node, found))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await in_thread(lambda: self._retrieve(query_bundle))


def _node(recall: Recall) -> NodeWithScore:
    told = citation(recall)
    node = TextNode(text=recall.text, metadata=told, excluded_embed_metadata_keys=list(told))
    node.excluded_llm_metadata_keys = [name for name in told if name not in ("source", "place", "told")]
    return NodeWithScore(node=node, score=recall.score)


class EverlongMemoryBlock(BaseMemoryBlock[str]):
    """Keeps what leaves the short-term memory of an agent, and brings back what its newest message needs.

    What is put is read into the memory, under the source `source`.
    """

    name: str = "everlong"
    memory: InstanceOf[MemoryModel] = Field(exclude=True)
    source: str = "conversation"
    k: int = 4
    where: InstanceOf[Where] = Field(default=EVERYWHERE, exclude=True)  # what may come back

    async def _aget(self, messages: list[ChatMessage] | None = None, **args: Any) -> str:
        question = next((text for one in reversed(messages or []) if (text := one.content or "").strip()), "")
        if not question:
            return ""
        return "\n\n".join(map(cited, await in_thread(lambda: self._found(question))))

    def _found(self, query: str) -> tuple[Recall, ...]:
        return exclusive(lambda: self.memory.find(query, k=self.k, where=self.where))

    async def _aput(self, messages: list[ChatMessage]) -> None:
        turns = words_of([(one.role.value, one.content or "") for one in messages])
        if turns:
            await in_thread(lambda: self._read(turns))

    def _read(self, text: str) -> None:
        exclusive(lambda: self.memory.read(text, source=self.source, again=True))
