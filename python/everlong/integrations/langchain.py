"""LangChain: a retriever, a chat model and a message history over a memory."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Generator, Sequence
from typing import Any, NoReturn

from everlong.generation.memory_model import MemoryModel
from everlong.integrations.citations import citation, name_of, words_of
from everlong.integrations.exclusive import before_stops, exclusive, exclusive_pieces
from everlong.integrations.extras import missing
from everlong.integrations.table import Table
from everlong.integrations.threads import in_thread, pieces_in_thread
from everlong.memory.where import EVERYWHERE, Where
from everlong.retrieval.recall import Recall

try:
    from langchain_core.callbacks import (
        AsyncCallbackManagerForLLMRun,
        AsyncCallbackManagerForRetrieverRun,
        CallbackManagerForLLMRun,
        CallbackManagerForRetrieverRun,
    )
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.documents import Document
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import (
        AIMessage,
        AIMessageChunk,
        BaseMessage,
        ChatMessage,
        HumanMessage,
        SystemMessage,
        message_to_dict,
        messages_from_dict,
    )
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
    from langchain_core.retrievers import BaseRetriever
    from pydantic import Field, InstanceOf
except ImportError as error:
    raise missing(error, "langchain") from error


class EverlongRetriever(BaseRetriever):
    """Passages of a memory as documents, best first. Their metadata cite: source, place, origin, score, confidence.

    `k` and `where` may be given in a call, too: `retriever.invoke("...", k=2, where=everlong.Where(source="a"))`.
    """

    memory: InstanceOf[MemoryModel]
    k: int = 4
    where: InstanceOf[Where] = EVERYWHERE  # what is searched

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        where: Where | None = None,
    ) -> list[Document]:
        count, chosen = self.k if k is None else k, self.where if where is None else where
        found = exclusive(lambda: self.memory.find(query, k=count, where=chosen))
        return [Document(page_content=one.text, metadata=citation(one)) for one in found]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **args: Any
    ) -> list[Document]:
        sync = run_manager.get_sync()
        return await in_thread(lambda: self._get_relevant_documents(query, run_manager=sync, **args))


class ChatEverlong(BaseChatModel):
    """The memory's model, which answers messages from what the memory holds.

    LangChain gives the whole conversation with every call. By default the memory keeps nothing of it. With `remember`
    it keeps each question and answer, and takes of the messages only those behind the newest answer.
    """

    memory: InstanceOf[MemoryModel]
    where: InstanceOf[Where] = EVERYWHERE  # what may be recalled
    recall: bool = True
    remember: bool = False
    max_tokens: int | None = None  # of an answer; by default 64, or what the model's own settings say
    temperature: float | None = None  # 0 is greedy search; by default as the model's own settings say
    stop: list[str] | None = None
    generation: dict[str, Any] = Field(default_factory=dict)  # further arguments of transformers' `generate`

    @property
    def _llm_type(self) -> str:
        return "everlong"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": name_of(self.memory), "where": str(self.where), "recall": self.recall}

    def _get_ls_params(self, stop: list[str] | None = None, **args: Any) -> Any:
        return {"ls_model_name": name_of(self.memory), **super()._get_ls_params(stop=stop, **args)}

    def bind_tools(self, tools: Sequence[Any], **args: Any) -> NoReturn:
        """Raise NotImplementedError: an answer is text."""
        raise NotImplementedError(
            "ChatEverlong calls no tools: its answers are text. A model that calls tools may have an EverlongRetriever"
        )

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **args: Any,
    ) -> ChatResult:
        counted, stops = _TokenCounter(), stop or self.stop or []
        how = self._how(messages, stops, counted, args)
        answer = exclusive(lambda: self.memory.generate(**how))
        said = "".join(before_stops([answer.text], stops))
        told = self._metadata_of(answer.recalled) | {
            "finish_reason": answer.finish_reason,
            "confidence": answer.confidence,
        }
        message = AIMessage(content=said, usage_metadata=counted.usage(), response_metadata=told)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **args: Any,
    ) -> ChatResult:
        sync = run_manager.get_sync() if run_manager is not None else None
        return await in_thread(lambda: self._generate(messages, stop, sync, **args))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **args: Any,
    ) -> Generator[ChatGenerationChunk]:
        counted, stops = _TokenCounter(), stop or self.stop or []
        how = self._how(messages, stops, counted, args)
        recalled: tuple[Recall, ...] = ()

        def pieces() -> Generator[str]:
            nonlocal recalled
            for piece in exclusive_pieces(lambda: self.memory.stream(**how)):
                recalled = self.memory.last_recalled
                yield piece

        for piece in before_stops(pieces(), stops):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=piece))
            if run_manager is not None:
                run_manager.on_llm_new_token(piece, chunk=chunk)
            yield chunk
        last = AIMessageChunk(
            content="",
            usage_metadata=counted.usage(),
            response_metadata=self._metadata_of(recalled),
            chunk_position="last",
        )
        yield ChatGenerationChunk(message=last)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **args: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        sync = run_manager.get_sync() if run_manager is not None else None
        async with contextlib.aclosing(pieces_in_thread(self._stream(messages, stop, sync, **args))) as pieces:
            async for piece in pieces:
                yield piece

    def _metadata_of(self, recalled: Sequence[Recall]) -> dict[str, Any]:
        return {"model_name": name_of(self.memory), "recalled": list(map(citation, recalled))}

    def _how(
        self, messages: Sequence[BaseMessage], stops: Sequence[str], counted: _TokenCounter, args: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of `MemoryModel.generate`."""
        if args.get("tools") or args.get("tool_choice"):
            self.bind_tools(())
        own = {name: getattr(self, name) for name in ("where", "recall", "remember", "max_tokens", "temperature")}
        further = {**self.generation, **args}
        chosen = {name: further.pop(name, value) for name, value in own.items()}
        warmth = chosen.pop("temperature")
        if warmth is not None:
            further["do_sample"] = warmth > 0
            if warmth > 0:
                further["temperature"] = warmth
        for name in ("tools", "tool_choice", "ls_structured_output_format"):
            further.pop(name, None)
        turns = list(map(_turn, messages))
        if chosen["remember"]:
            turns = _new(turns)
        if stops:
            further["stop_strings"] = list(stops)
        return {
            **further,
            "messages": turns,
            "max_new_tokens": chosen.pop("max_tokens") or further.get("max_new_tokens"),
            "streamer": counted,
            **chosen,
        }


class _TokenCounter:
    """Counts the tokens of a prompt and its answer: a streamer as transformers has them."""

    def __init__(self) -> None:
        self._tokens: list[int] = []

    def put(self, ids: Any) -> None:
        self._tokens.append(int(ids.numel()))

    def end(self) -> None:
        """The prompt came first, then token by token."""

    def usage(self) -> Any:
        asked, said = sum(self._tokens[:1]), sum(self._tokens[1:])
        return {"input_tokens": asked, "output_tokens": said, "total_tokens": asked + said}


def _turn(message: BaseMessage) -> dict[str, str]:
    """Return a message as transformers' chat templates take it. ValueError for what is no text."""
    if isinstance(message, SystemMessage):
        role = "system"
    elif isinstance(message, HumanMessage):
        role = "user"
    elif isinstance(message, AIMessage) and not message.tool_calls:
        role = "assistant"
    elif isinstance(message, ChatMessage):
        role = message.role
    else:
        raise ValueError(f"a message of the type {message.type}: ChatEverlong takes text, and neither tools nor calls")
    return {"role": role, "content": _text(message)}


def _text(message: BaseMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = [{"type": "text", "text": one} if isinstance(one, str) else one for one in message.content]
    other = [str(one.get("type")) for one in parts if one.get("type") != "text"]
    if other:
        raise ValueError(f"a message with {other[0]}: ChatEverlong takes text")
    return "".join(str(one["text"]) for one in parts)


def _new(turns: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the turns behind the newest answer: what stands before was said here, and is remembered."""
    said = max((number for number, turn in enumerate(turns) if turn["role"] == "assistant"), default=-1)
    return turns[said + 1 :]


class EverlongChatMessageHistory(BaseChatMessageHistory):
    """The messages of a session, kept with a memory, and read into it, so that questions find them.

    The source of what was read is the session's name. Messages that are no text are kept, and not read.
    """

    def __init__(self, memory: MemoryModel, session_id: str) -> None:
        self._memory, self._session = memory, session_id
        self._table = Table(memory, f"messages_{hashlib.sha256(session_id.encode()).hexdigest()[:32]}.json")

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # it is an attribute there, and read alone
        """All of them, oldest first."""
        return list(messages_from_dict(self._table.rows()))

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Read messages into the memory, and keep them: all, or none."""
        with self._table.change() as change:
            for message in messages:
                text = words_of([(message.type, message.text)])
                change.read(text, self._session, f"{self._session} {len(change.rows)}")
                change.rows.append(message_to_dict(message))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Do as `add_messages`, in a thread."""
        await in_thread(lambda: self.add_messages(messages))

    async def aclear(self) -> None:
        """Do as `clear`, in a thread."""
        await in_thread(self.clear)

    def clear(self) -> None:
        """Forget what was read of the session, and its messages; not what else was read under its name."""
        own = f"{self._session} "
        with self._table.change() as change:
            for block in self._memory.memory.blocks(self._session):
                if block.origin.startswith(own) and block.origin.removeprefix(own).isdecimal():
                    change.outdated.add(block.id)
            change.rows = []
