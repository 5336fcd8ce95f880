"""One answer: from a memory, behind a conversation, or from the model alone."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everlong.generation.memory_model import MemoryModel
from everlong.memory.where import EVERYWHERE, Where
from everlong.retrieval.recall import Recall
from everlong.serve.conversations import Conversations, digests_of
from everlong.serve.draws import Draws
from everlong.serve.limits import Limits
from everlong.serve.loaded import Loaded
from everlong.serve.metrics import Metrics
from everlong.serve.scores import Scored, Scores
from everlong.serve.seats import Seats
from everlong.serve.shelf import Shelf
from everlong.serve.stops import Stops

# What was said in a conversation may come back, whoever said it. By itself no search brings questions back.
_ALL_TURNS = Where(role=("read", "asked", "said"))


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


class Counted:
    """A streamer of transformers that counts tokens."""

    def __init__(self) -> None:
        self.read = self.said = 0
        self.first_at: float | None = None
        self.last = -1
        self._prompted = False

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
        self, loaded: Loaded, shelf: Shelf, seats: Seats, limits: Limits, metrics: Metrics, window: int
    ) -> None:
        """`window`: tokens of a conversation that stand before the model at once."""
        self._loaded, self._shelf, self._limits, self._metrics = loaded, shelf, limits, metrics
        self.seats, self._window = seats, window
        self.conversations = Conversations(shelf.own / "conversations", limits.conversations, seats)
        self._alone = shelf.own / "alone"  # an empty memory, for the model without one

    def answer(self, key: str, asked: Asked) -> Generator[str, None, Said]:
        """Yield the pieces of an answer, and return all of it. An empty piece says only that it goes on."""
        started = time.monotonic()
        library, version = self._library(asked.memory)
        turns = asked.messages
        digests = digests_of(key, asked.memory, turns)
        known = 0 if asked.where.chooses else self.conversations.known(digests[:-1], version)
        if known == 0 and (asked.where.chooses or not self._is_conversation(turns)):
            with self.seats.taken(library, version, read_only=True) as seat:
                said = yield from self._pieces(seat.mm, asked, turns, 0, remember=False)
        else:
            before = digests[known - 1] if known else None
            with self.conversations.going_on(asked.memory, version, library, before) as going:
                there = going.seat.mm.stream_tokens - going.base
                said = yield from self._pieces(going.seat.mm, asked, turns[known:], there, remember=True)
                if said.finish != "time":
                    answered = [*turns, {"role": "assistant", "content": said.text}]
                    last = digests_of(key, asked.memory, answered)[-1]
                    self.conversations.reached(last, asked.memory, version, going)
        self._metrics.answered(said.read, said.tokens, len(said.recalled), time.monotonic() - started)
        return said

    def close(self) -> None:
        self.seats.close_all()

    def _library(self, memory: str) -> tuple[Path, int]:
        """Return the folder that is answered from, and its version."""
        if memory:
            return self._shelf.there(memory), self._shelf.version(memory)
        if not self._alone.exists():
            with self._loaded.opened(self._alone):
                pass
        return self._alone, 0

    def _is_conversation(self, turns: Sequence[Mapping[str, str]]) -> bool:
        """Return whether turns are to be remembered: there was an answer before, or they are too long for the frame."""
        if any(turn["role"] == "assistant" for turn in turns):
            return True
        text = "\n".join(turn["content"] for turn in turns)
        return len(text) > self._window and len(self._loaded.tokenizer(text)["input_ids"]) > self._window

    def _pieces(
        self, mm: MemoryModel, asked: Asked, turns: Sequence[Mapping[str, str]], known: int, *, remember: bool
    ) -> Generator[str, None, Said]:
        where = _ALL_TURNS if remember and mm.frame.os.evicted else asked.where
        counted, stops, said = Counted(), Stops(asked.stop), []
        scores = None if asked.scores is None else Scores(asked.scores)
        watched: dict[str, Any] = {} if scores is None else {"logits_processor": [scores]}
        draws = Draws(asked.seed, mm.model.device)
        until = time.monotonic() + self._limits.answer_seconds
        streamed = mm.stream(
            messages=turns,
            max_new_tokens=asked.tokens,
            recall=asked.recall,
            remember=remember,
            where=where,
            streamer=counted,
            **asked.generation(),
            **watched,
        )
        late = False
        with contextlib.closing(streamed):
            for piece in _drawn(streamed, draws):
                said.append(stops.more(piece))
                yield said[-1]
                late = time.monotonic() > until
                if stops.stopped or late:
                    break
        said.append(stops.rest())
        if said[-1]:
            yield said[-1]
        ended = stops.stopped or counted.said < asked.tokens or counted.last in _ends_of(mm)
        finish = "time" if late and not stops.stopped else "stop" if ended else "length"
        if counted.first_at is not None:
            self._metrics.first_token.observe(counted.first_at - (until - self._limits.answer_seconds))
        text, recalled = "".join(said), mm.last_recalled
        scored = (
            ()
            if scores is None
            else scores.scored(mm.tokenizer, counted.last, _ends_of(mm), text if stops.stopped else None)
        )
        return Said(text, finish, counted.read, known, counted.said, recalled, mm.last_confidence, scored)


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
