"""One answer: from a memory, behind a conversation, or from the model alone."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from everlong.generation.answering import prompt_of
from everlong.generation.memory_model import MemoryModel
from everlong.memory.where import EVERYWHERE, Where
from everlong.retrieval.recall import Recall
from everlong.serve.conversations import Conversations, digests_of
from everlong.serve.draws import Draws
from everlong.serve.limits import Limits
from everlong.serve.loaded import Loaded
from everlong.serve.metrics import Metrics
from everlong.serve.own_folder import OwnFolder
from everlong.serve.scores import Scored, Scores
from everlong.serve.seats import Seats, Version
from everlong.serve.shelf import Shelf, State, changed_meanwhile, no_memory
from everlong.serve.stops import Stops
from everlong.text.prompt import Prompt

# What was said in a conversation may come back, whoever said it. By itself no search brings questions back.
_ALL_TURNS = Where(role=("read", "asked", "said"))
_WORDS = 1 << 14  # characters of a question that the answering thread makes tokens of; another thread does more
_LOOK_AGAIN = 0.5  # seconds between two looks whether something was forgotten
_GLANCE = 0.01  # seconds in which the answering thread looks whether that is done
_MOST_SPELLED = 16  # characters of a token: text with more of them than that is certainly too long for a frame


@dataclasses.dataclass(frozen=True)
class Asked:
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
    state: State | None = None  # of the memory, where its earlier answers are among the messages
    scores: int | None = None  # how many other tokens to tell with each; None: no scores

    def generation(self) -> dict[str, Any]:
        """Return it as transformers' `generate` takes it."""
        if self.temperature == 0:
            return {"do_sample": False}
        given = {"temperature": self.temperature, "top_p": self.top_p}
        named = {name: value for name, value in given.items() if value is not None}
        return {"do_sample": True, "top_k": 0, **named} if named else {}


@dataclasses.dataclass(frozen=True)
class Said:
    """An answer, and what it was made of."""

    text: str
    finish: str  # "stop", "length" or "time"
    read: int  # tokens that were read for it
    known: int  # tokens of the conversation that were read before
    tokens: int  # generated
    recalled: tuple[Recall, ...]
    confidence: float | None
    scored: tuple[Scored, ...] = ()
    kept: bool = True  # whether its conversation holds it, where it is to be remembered
    state: State | None = None  # of the memory when it began


class Counted:
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


class Answers:
    """Answers questions, a piece at a time. For the answering thread alone."""

    def __init__(
        self, loaded: Loaded, shelf: Shelf, own: OwnFolder, seats: Seats, limits: Limits, metrics: Metrics, window: int
    ) -> None:
        """`window`: tokens of a conversation that stand before the model at once."""
        self._loaded, self._shelf, self._limits, self._metrics = loaded, shelf, limits, metrics
        self.seats, self._window = seats, window
        self.conversations = Conversations(own.conversations, limits.conversations, seats)
        self._alone = own.alone  # an empty memory, for the model without one
        self._words = ThreadPoolExecutor(1, "everlong words")
        self._words_tokenizer = loaded.for_another_thread().tokenizer

    def answer(self, key: str, asked: Asked, counted: Counted | None = None) -> Generator[str, None, Said]:
        """Yield the pieces of an answer, and return all of it. An empty piece says only that it goes on.

        `counted` counts its tokens. It is right whenever the answer ends, also where it is closed or fails.
        """
        started = time.monotonic()
        counted = counted or Counted()
        library, version = self._library(asked)
        if asked.state is not None and asked.state != version[0]:  # something was forgotten while it waited
            raise changed_meanwhile(asked.memory)
        turns = asked.messages
        digests = digests_of(key, asked.memory, turns)
        known = 0 if asked.where.chooses else self.conversations.known(digests[:-1], version)
        if known == 0 and (asked.where.chooses or not self._is_conversation(turns)):
            with self.seats.taken(library, version, read_only=True) as seat:
                pieces = self._pieces(seat.mm, asked, turns, 0, counted, remember=False)
                said = yield from self._unless_forgotten(asked.memory, version, pieces)
        else:
            before = digests[known - 1] if known else None
            with self.conversations.going_on(asked.memory, version, library, before) as going:
                there = going.seat.mm.stream_tokens - going.base
                pieces = self._pieces(going.seat.mm, asked, turns[known:], there, counted, remember=True)
                said = yield from self._unless_forgotten(asked.memory, version, pieces)
                if said.kept:
                    answered = [*turns, {"role": "assistant", "content": said.text}]
                    last = digests_of(key, asked.memory, answered)[-1]
                    self.conversations.reached(last, asked.memory, version, going)
        self._metrics.answered(said.read, said.tokens, len(said.recalled), time.monotonic() - started)
        return dataclasses.replace(said, state=version[0])

    def let_go(self, memory: str, state: State | None) -> None:
        """Close what is open of a memory, and remove conversations from before `state`; None: it is gone."""
        self.seats.close(self._shelf.root / memory)
        self.conversations.forget(memory, state)

    def close(self) -> None:
        self._words.shutdown(cancel_futures=True)
        self.seats.close_all()

    def _unless_forgotten(
        self, memory: str, version: Version, pieces: Generator[str, None, Said]
    ) -> Generator[str, None, Said]:
        """Yield the pieces of an answer, and return all of it. ApiError 409 once something was forgotten meanwhile."""
        looked = time.monotonic()
        with contextlib.closing(pieces):
            while True:
                piece, said = "", None
                try:
                    piece = next(pieces)
                except StopIteration as end:
                    said = end.value
                if memory and (said is not None or time.monotonic() > looked + _LOOK_AGAIN):
                    looked = time.monotonic()
                    if self._state(memory) != version[0]:
                        raise changed_meanwhile(memory)
                if isinstance(said, Said):
                    return said
                yield piece

    def _state(self, memory: str) -> State:
        """Return the state of a memory now, whoever changed it. ApiError where there is none."""
        found = self.seats.state(self._shelf.there(memory)) or self._shelf.state(memory)
        if found is None:
            raise no_memory(memory)
        return found

    def _library(self, asked: Asked) -> tuple[Path, Version]:
        """Return the folder that is answered from, and its version."""
        if memory := asked.memory:
            folder, changes = self._shelf.there(memory), self._shelf.changes(memory)
            if not _goes_on(asked.messages) and self.seats.state(folder) is None:  # it is opened anyway
                return folder, (self.seats.set_out(folder, changes), changes)
            return folder, (self._state(memory), changes)
        if not self._alone.exists():
            with self._loaded.opened(self._alone):
                pass
        return self._alone, (None, 0)

    def _is_conversation(self, turns: Sequence[Mapping[str, str]]) -> bool:
        """Return whether turns are to be remembered: there was an answer before, or they are too long for the frame."""
        if _goes_on(turns):
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
        asked: Asked,
        turns: Sequence[Mapping[str, str]],
        known: int,
        counted: Counted,
        *,
        remember: bool,
    ) -> Generator[str, None, Said]:
        started = time.monotonic()
        until = started + self._limits.answer_seconds
        stops, said = Stops(asked.stop), []
        prompt = yield from self._prompt(turns, until, first=mm.stream_tokens == 0)
        if prompt is None:
            return Said("", "time", 0, known, 0, (), None, kept=False)
        where = _ALL_TURNS if remember and mm.frame.os.evicted else asked.where
        scores = None if asked.scores is None else Scores(asked.scores)
        watched: dict[str, Any] = {} if scores is None else {"logits_processor": [scores]}
        draws = Draws(asked.seed, mm.model.device)
        streamed = mm.in_steps(
            turns,
            asked.tokens,
            prompt=prompt,
            cuts=stops if asked.stop else None,
            recall=asked.recall,
            remember=remember,
            where=where,
            streamer=counted,
            progress=counted.computed,
            **asked.generation(),
            **watched,
        )
        late = False
        with contextlib.closing(streamed):
            for piece in _drawn(streamed, draws):
                said.append(piece)
                yield piece
                late = time.monotonic() > until
                if late:
                    break
        if rest := stops.rest():  # the time was over
            said.append(rest)
            yield rest
        ended = stops.stopped or counted.last in _ends_of(mm)
        full = counted.said >= asked.tokens
        finish = "stop" if ended else "length" if full else "time" if late else "stop"
        if counted.first_at is not None:
            self._metrics.first_token.observe(counted.first_at - started)
        text, recalled = "".join(said), mm.last_recalled
        scored = (
            ()
            if scores is None
            else scores.scored(mm.tokenizer, counted.last, _ends_of(mm), text if stops.stopped else None)
        )
        confidence = mm.last_confidence
        return Said(text, finish, counted.read, known, counted.said, recalled, confidence, scored, kept=not late)


def _goes_on(turns: Sequence[Mapping[str, str]]) -> bool:
    """Return whether there was an answer before."""
    return any(turn["role"] == "assistant" for turn in turns)


def _drawn(streamed: Generator[str], draws: Draws) -> Iterator[str]:
    """Yield the pieces of an answer, each drawn from the answer's own random numbers."""
    while True:
        with draws.here():
            piece = next(streamed, None)
        if piece is None:
            return
        yield piece


def _ends_of(mm: MemoryModel) -> set[int]:
    """Return the tokens that end an answer."""
    ends = getattr(mm.model.generation_config, "eos_token_id", None)
    return set(ends) if isinstance(ends, list) else {ends} if ends is not None else set()
