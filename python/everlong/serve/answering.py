"""One answer: from a memory, behind a conversation, or from the model alone."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from everlong.generation.answer_generator import prompt_of
from everlong.generation.memory_model import MemoryModel
from everlong.memory.where import EVERYWHERE, Where
from everlong.retrieval.recall import Recall
from everlong.serve.conversations import Conversations, digests_of
from everlong.serve.loaded_model import LoadedModel
from everlong.serve.logprobs import LogprobRecorder, TokenLogprob
from everlong.serve.metrics import Metrics
from everlong.serve.model_pool import ModelPool, Version
from everlong.serve.rng import RandomState
from everlong.serve.stop_strings import StopStrings
from everlong.service_data.limits import Limits
from everlong.service_data.memory_registry import MemoryRegistry, MemoryState, memory_changed, no_memory
from everlong.service_data.service_folder import ServiceFolder
from everlong.text.prompt import Prompt

# What was said in a conversation may come back, whoever said it. By itself no search brings questions back.
_ALL_TURNS = Where(role=("read", "asked", "said"))
_WORDS = 1 << 14  # characters of a question that the answering thread makes tokens of; another thread does more
_LOOK_AGAIN = 0.5  # seconds between two looks whether something was forgotten
_GLANCE = 0.01  # seconds in which the answering thread looks whether that is done
_MOST_SPELLED = 16  # characters of a token: text with more of them than that is certainly too long for a frame


@dataclasses.dataclass(frozen=True)
class AnswerRequest:
    """What is asked, and how it is to be answered."""

    memory: str  # "" is the model alone
    messages: tuple[Mapping[str, str], ...]  # the last one is a user's
    tokens: int  # the most in the answer
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    recall: bool = True
    where: Where = EVERYWHERE
    user: str | None = None  # whose question it is, as the caller says
    state: MemoryState | None = None  # of the memory, where its earlier answers are among the messages
    scores: int | None = None  # how many other tokens to tell with each; None: no scores

    def generation(self) -> dict[str, Any]:
        """Return it as transformers' `generate` takes it."""
        if self.temperature == 0:
            return {"do_sample": False}
        given = {"temperature": self.temperature, "top_p": self.top_p}
        named = {name: value for name, value in given.items() if value is not None}
        return {"do_sample": True, "top_k": 0, **named} if named else {}


@dataclasses.dataclass(frozen=True)
class AnswerResult:
    """An answer, and what it was made of."""

    text: str
    finish: str  # "stop", "length" or "time"
    read: int  # tokens that were read for it
    known: int  # tokens of the conversation that were read before
    tokens: int  # generated
    recalled: tuple[Recall, ...]
    confidence: float | None
    scored: tuple[TokenLogprob, ...] = ()
    kept: bool = True  # whether its conversation holds it, where it is to be remembered
    state: MemoryState | None = None  # of the memory when it began


class TokenCounter:
    """Counts the tokens of an answer, however it ends. A streamer of transformers."""

    def __init__(self) -> None:
        self.read = self.said = 0  # tokens of the prompt, and of the answer
        self.first_at: float | None = None
        self.last = -1
        self._computed = 0
        self._prompted = False

    @property
    def tokens(self) -> int:
        """How many were read and generated so far."""
        return min(self.read, self._computed) + self.said

    def computed(self, tokens: int) -> None:
        """Note that so many tokens of the prompt were read."""
        self._computed += tokens

    def put(self, ids: Any) -> None:
        if not self._prompted:
            self._prompted, self.read = True, int(ids.numel())
            return
        self.first_at = self.first_at or time.monotonic()
        self.said += int(ids.numel())
        self.last = int(ids.flatten()[-1])

    def end(self) -> None:
        """Do nothing: the answer says when it ends."""


class AnswerEngine:
    """Answers questions, a piece at a time. For the answering thread alone."""

    def __init__(
        self,
        loaded_model: LoadedModel,
        registry: MemoryRegistry,
        own: ServiceFolder,
        pool: ModelPool,
        limits: Limits,
        metrics: Metrics,
        window: int,
    ) -> None:
        """`window`: tokens of a conversation that stand before the model at once."""
        self._loaded, self._registry, self._limits, self._metrics = loaded_model, registry, limits, metrics
        self.pool, self._window = pool, window
        self.conversations = Conversations(own.conversations, limits.conversations, pool)
        self._alone = own.alone  # an empty memory, for the model without one
        self._words = ThreadPoolExecutor(1, "everlong words")
        self._words_tokenizer = loaded_model.with_own_tokenizer().tokenizer

    def answer(
        self, key: str, request: AnswerRequest, counter: TokenCounter | None = None
    ) -> Generator[str, None, AnswerResult]:
        """Yield the pieces of an answer, and return all of it. An empty piece says only that it goes on.

        `counted` counts its tokens. It is right whenever the answer ends, also where it is closed or fails.
        """
        started = time.monotonic()
        counter = counter or TokenCounter()
        library, version = self._library(request)
        if request.state is not None and request.state != version[0]:  # something was forgotten while it waited
            raise memory_changed(request.memory)
        turns = request.messages
        digests = digests_of(key, request.memory, turns)
        known = 0 if request.where.chooses else self.conversations.known(digests[:-1], version)
        if known == 0 and (request.where.chooses or not self._is_conversation(turns)):
            with self.pool.acquire(library, version, read_only=True) as pooled:
                pieces = self._pieces(pooled.mm, request, turns, 0, counter, remember=False)
                answer = yield from self._until_forgotten(request.memory, version, pieces)
        else:
            before = digests[known - 1] if known else None
            with self.conversations.resume(request.memory, version, library, before) as conversation:
                there = conversation.pooled.mm.stream_tokens - conversation.base
                pieces = self._pieces(conversation.pooled.mm, request, turns[known:], there, counter, remember=True)
                answer = yield from self._until_forgotten(request.memory, version, pieces)
                if answer.kept:
                    answered = [*turns, {"role": "assistant", "content": answer.text}]
                    last = digests_of(key, request.memory, answered)[-1]
                    self.conversations.record(last, request.memory, version, conversation)
        self._metrics.answered(answer.read, answer.tokens, len(answer.recalled), time.monotonic() - started)
        return dataclasses.replace(answer, state=version[0])

    def close_memory(self, memory: str, state: MemoryState | None) -> None:
        """Close what is open of a memory, and remove conversations from before `state`; None: it is gone."""
        self.pool.close(self._registry.root / memory)
        self.conversations.forget(memory, state)

    def close(self) -> None:
        self._words.shutdown(cancel_futures=True)
        self.pool.close_all()

    def _until_forgotten(
        self, memory: str, version: Version, pieces: Generator[str, None, AnswerResult]
    ) -> Generator[str, None, AnswerResult]:
        """Yield the pieces of an answer, and return all of it. ApiError 409 once something was forgotten meanwhile."""
        looked = time.monotonic()
        with contextlib.closing(pieces):
            while True:
                piece, answer = "", None
                try:
                    piece = next(pieces)
                except StopIteration as end:
                    answer = end.value
                if memory and (answer is not None or time.monotonic() > looked + _LOOK_AGAIN):
                    looked = time.monotonic()
                    if self._state(memory) != version[0]:
                        raise memory_changed(memory)
                if isinstance(answer, AnswerResult):
                    return answer
                yield piece

    def _state(self, memory: str) -> MemoryState:
        """Return the state of a memory now, whoever changed it. ApiError where there is none."""
        found = self.pool.state(self._registry.existing_folder(memory)) or self._registry.state(memory)
        if found is None:
            raise no_memory(memory)
        return found

    def _library(self, request: AnswerRequest) -> tuple[Path, Version]:
        """Return the folder that is answered from, and its version."""
        if memory := request.memory:
            folder, changes = self._registry.existing_folder(memory), self._registry.change_count(memory)
            if not _is_follow_up(request.messages) and self.pool.state(folder) is None:  # it is opened anyway
                return folder, (self.pool.preload(folder, changes), changes)
            return folder, (self._state(memory), changes)
        if not self._alone.exists():
            with self._loaded.opened_memory(self._alone):
                pass
        return self._alone, (None, 0)

    def _is_conversation(self, turns: Sequence[Mapping[str, str]]) -> bool:
        """Return whether turns are to be remembered: there was an answer before, or they are too long for the frame."""
        if _is_follow_up(turns):
            return True
        text = "\n".join(turn["content"] for turn in turns)
        if len(text) > self._window * _MOST_SPELLED:
            return True
        return len(text) > self._window and len(self._loaded.tokenizer(text)["input_ids"]) > self._window

    def _prompt(
        self, turns: Sequence[Mapping[str, str]], until: float, *, first: bool
    ) -> Generator[str, None, Prompt | None]:
        """Make the prompt, a long one in another thread. None where the time is over."""
        if sum(len(turn["content"]) for turn in turns) <= _WORDS:
            return prompt_of(self._loaded.tokenizer, turns, first=first)
        making = self._words.submit(prompt_of, self._words_tokenizer, turns, first=first)
        try:
            while not wait([making], _GLANCE).done:
                yield ""
                if time.monotonic() > until:
                    return None
        finally:
            making.cancel()
        return making.result()

    def _pieces(
        self,
        mm: MemoryModel,
        request: AnswerRequest,
        turns: Sequence[Mapping[str, str]],
        known: int,
        counter: TokenCounter,
        *,
        remember: bool,
    ) -> Generator[str, None, AnswerResult]:
        started = time.monotonic()
        until = started + self._limits.answer_seconds
        stops, answer = StopStrings(request.stop), []
        prompt = yield from self._prompt(turns, until, first=mm.stream_tokens == 0)
        if prompt is None:
            return AnswerResult("", "time", 0, known, 0, (), None, kept=False)
        where = _ALL_TURNS if remember and mm.frame.os.evicted else request.where
        scores = None if request.scores is None else LogprobRecorder(request.scores)
        watched: dict[str, Any] = {} if scores is None else {"logits_processor": [scores]}
        draws = RandomState(request.seed, mm.model.device)
        streamed = mm.in_steps(
            turns,
            request.tokens,
            prompt=prompt,
            cuts=stops if request.stop else None,
            recall=request.recall,
            remember=remember,
            where=where,
            streamer=counter,
            progress=counter.computed,
            **request.generation(),
            **watched,
        )
        late = False
        with contextlib.closing(streamed):
            for piece in _sampling_arguments(streamed, draws):
                answer.append(piece)
                yield piece
                late = time.monotonic() > until
                if late:
                    break
        if rest := stops.rest():  # the time was over
            answer.append(rest)
            yield rest
        ended = stops.stopped or counter.last in _stop_ids(mm)
        full = counter.said >= request.tokens
        finish = "stop" if ended else "length" if full else "time" if late else "stop"
        if counter.first_at is not None:
            self._metrics.first_token.observe(counter.first_at - started)
        text, recalled = "".join(answer), mm.last_recalled
        scored = (
            ()
            if scores is None
            else scores.scored(mm.tokenizer, counter.last, _stop_ids(mm), text if stops.stopped else None)
        )
        confidence = mm.last_confidence
        return AnswerResult(
            text, finish, counter.read, known, counter.said, recalled, confidence, scored, kept=not late
        )


def _is_follow_up(turns: Sequence[Mapping[str, str]]) -> bool:
    """Return whether there was an answer before."""
    return any(turn["role"] == "assistant" for turn in turns)


def _sampling_arguments(streamed: Generator[str], draws: RandomState) -> Iterator[str]:
    """Yield the pieces of an answer, each drawn from the answer's own random numbers."""
    while True:
        with draws.here():
            piece = next(streamed, None)
        if piece is None:
            return
        yield piece


def _stop_ids(mm: MemoryModel) -> set[int]:
    """Return the tokens that end an answer."""
    ends = getattr(mm.model.generation_config, "eos_token_id", None)
    return set(ends) if isinstance(ends, list) else {ends} if ends is not None else set()
